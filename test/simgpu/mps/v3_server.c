// SPDX-License-Identifier: Apache-2.0
//
// v3_server.c: named servers.
//
// Invariants:
// - A server's folder is there as long as the server is: DIR/NAME/control leads to
//   its default namespace.
// - create starts the process and says nothing of how that goes: a server that
//   cannot start is gone again, as with the real one.
#define _GNU_SOURCE
#include "mps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void folder_of(const struct server *v, char *path, size_t length) {
    snprintf(path, length, "%s/%s", mps.dir, v->name);
}

static void remove_folder(const struct server *v) {
    static const char *const names[] = {"/control", "/log", ""};
    char path[512];
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s%s", mps.dir, v->name, names[i]);
        if (*names[i]) unlink(path);
        else rmdir(path);
    }
}

// v3_add_server makes a server with its folder; NULL when it can't.
struct server *v3_add_server(const char *name, uid_t uid) {
    char path[512];
    struct server *v = server_add(name, uid);
    if (!v) return NULL;
    memset(v->spaces, 0, sizeof v->spaces);
    folder_of(v, path, sizeof path);
    bool made = (mkdir(path, 0755) == 0 || errno == EEXIST) &&
                (v->listener = listen_at(path, "control", 0666)) >= 0 && space_add(v, "default");
    strcat(path, "/log");
    if (made && (mkfifo(path, 0777) == 0 || errno == EEXIST)) {
        snprintf(path, sizeof path, "%s/%s", mps.log_dir, name);
        mkdir(path, 0755);
        return v;
    }
    v3_forget(v);
    return NULL;
}

// v3_forget drops a server that has no process.
void v3_forget(struct server *v) {
    for (struct space *space = v->spaces; space < v->spaces + MPS_SPACES; space++)
        if (space->used) space_remove(v, space);
    if (v->listener >= 0) close(v->listener);
    remove_folder(v);
    v->used = false;
}

const char *v3_status(struct server *v) {
    if (!v->pid) return "Stopped";
    if (!v->ready) return "Initializing";
    return strcmp(server_status(v), "FAULT") == 0 ? "Fault" : "Ready";
}

// allow restricts a server's devices. A name that means none leaves it without any.
static void allow(struct server *v, const char *names) {
    char list[1024], *rest = list, *name;
    snprintf(list, sizeof list, "%s", names);
    v->device_count = 0;
    while ((name = strsep(&rest, ",")) && v->device_count < SIM_MAX_DEVICES) {
        int dev = device_named(mps.s, mps.devices, mps.device_count, name);
        if (dev >= 0) v->devices[v->device_count++] = (unsigned)dev;
    }
}

static void create(const struct args *a, struct reply *r) {
    const char *name = a->words[0], *uid_text = option(a, "uid"), *devices = option(a, "allowed-devices");
    char automatic[65], *end = NULL;
    unsigned long uid = uid_text ? strtoul(uid_text, &end, 10) : mps.multiuser ? 0 : a->uid;
    if ((uid_text && (*end || end == uid_text)) || (!name && !uid_text)) {
        refuse(r, "server create: a name or --uid=<n> is required");
        return;
    }
    if (mps.multiuser && (uid || a->uid)) {
        refuse(r, "In multiuser mode servers are root's: only UID 0 is allowed");
        return;
    }
    if (a->uid && uid != a->uid) {
        refuse(r, "Insufficient privileges for UID %u. 'SERVER CREATE' requires server owner.", (unsigned)a->uid);
        return;
    }
    snprintf(automatic, sizeof automatic, "uid_%lu", uid);
    if (!name) name = automatic;
    if (!good_name(name, r)) return;
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (v->used && strcmp(v->name, name) == 0) {
            refuse(r, "Server '%s' already exists", name);
            return;
        }
    struct server *v = v3_add_server(name, (uid_t)uid);
    if (v && devices) allow(v, devices);
    if (!v || !server_start(v)) refuse(r, "Failed to create server '%s'", name);
}

static void delete(const struct args *a, struct reply *r) {
    struct server *v = server_named(a->words[0], r);
    if (!v || !owns(v, a, "SERVER DELETE", r)) return;
    if (!flag(a, "force") && server_client_count(v, NULL)) {
        refuse(r, "Server '%s' has active clients", v->name);
        return;
    }
    v->deleted = true;
    if (v->pid) server_end(v, MPS_END);
    else v3_forget(v);
}

enum { NAME, UID, PID, STATUS, PIPE, DEVICES, CONTEXTS, FIELDS };
static const char *const names[] = {"NAME", "UID", "PID", "STATUS", "PIPE DIRECTORY",
                                    "ALLOWED DEVICES", "CONTEXT IDS"};
static const char *const fields[] = {"name", "uid", "pid", "status", "pipe-directory", "allowed-devices"};

static void fill(struct server *v, char cells[FIELDS][1024]) {
    char *devices = cells[DEVICES];
    snprintf(cells[NAME], 1024, "%s", v->name);
    snprintf(cells[UID], 1024, "%u", (unsigned)v->uid);
    snprintf(cells[PID], 1024, "%d", (int)v->pid);
    snprintf(cells[STATUS], 1024, "%s", v3_status(v));
    folder_of(v, cells[PIPE], 1024);
    devices[0] = 0;
    for (unsigned i = 0; i < v->device_count; i++) {
        if (i) strcat(devices, " ");
        device_uuid(mps.s, v->devices[i], devices + strlen(devices), 64);
    }
    snprintf(cells[CONTEXTS], 1024, "-");
}

static void list(const struct args *a, struct reply *r) {
    static const unsigned widths[] = {16, 6, 6, 14, 32, 40, 12};
    struct table t;
    if (!table_begin(&t, a, r, names, widths, FIELDS)) return;
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++) {
        char cells[FIELDS][1024];
        const char *row[FIELDS];
        if (!v->used || v->deleted || (a->words[0] && strcmp(v->name, a->words[0]) != 0)) continue;
        fill(v, cells);
        for (unsigned i = 0; i < FIELDS; i++) row[i] = cells[i];
        table_row(&t, row);
    }
}

static void get(const struct args *a, struct reply *r) {
    char cells[FIELDS][1024];
    struct server *v = server_named(a->words[0], r);
    if (!v) return;
    fill(v, cells);
    for (unsigned i = 0; a->words[1] && i < CONTEXTS; i++)
        if (is_field(a->words[1], fields[i])) {
            say(r, "%s\n", cells[i]);
            return;
        }
    refuse(r, "Unknown field '%s'", a->words[1] ? a->words[1] : "");
}

static void set(const struct args *a, struct reply *r) {
    struct server *v = server_named(a->words[0], r);
    if (!v || !owns(v, a, "SERVER SET", r)) return;
    if (server_client_count(v, &v->spaces[0]))
        refuse(r, "Server '%s' has active clients in its default namespace", v->name);
    else
        space_set(&v->spaces[0], a, r);
}

void v3_server(const char *verb, const struct args *a, struct reply *r) {
    if (strcmp(verb, "create") == 0) create(a, r);
    else if (strcmp(verb, "delete") == 0) delete(a, r);
    else if (strcmp(verb, "list") == 0) list(a, r);
    else if (strcmp(verb, "get") == 0) get(a, r);
    else set(a, r);
}
