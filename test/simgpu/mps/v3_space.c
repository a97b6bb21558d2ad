// SPDX-License-Identifier: Apache-2.0
//
// v3_space.c: namespaces: the limits of a group of a server's clients.
//
// Invariants:
// - A namespace is a folder with a socket in it: who connects by it is in it. A
//   container that has that folder only cannot get out of it.
// - A new namespace has no limits, whatever the server's default namespace has.
// - Limits do not change, and a namespace does not go, while it has clients.
#define _GNU_SOURCE
#include "mps.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void folder_of(const struct server *v, const struct space *space, char *path, size_t length) {
    snprintf(path, length, "%s/%s/%s", mps.dir, v->name, space->name);
}

// space_add makes a namespace with its folder; NULL when it can't.
struct space *space_add(struct server *v, const char *name) {
    char path[512];
    struct space *space = v->spaces;
    while (space < v->spaces + MPS_SPACES && space->used) space++;
    if (space == v->spaces + MPS_SPACES) return NULL;
    *space = (struct space){.used = true, .percent = 100, .listener = -1};
    snprintf(space->name, sizeof space->name, "%s", name);
    folder_of(v, space, path, sizeof path);
    if ((mkdir(path, 0755) == 0 || errno == EEXIST) &&
        (space->listener = listen_at(path, "control", 0666)) >= 0)
        return space;
    space_remove(v, space);
    return NULL;
}

// space_remove takes the folder away; whoever waits there for the server is hung up on.
void space_remove(struct server *v, struct space *space) {
    char path[512];
    for (struct conn *c = mps.conns; c < mps.conns + MPS_CONNS; c++)
        if (c->fd >= 0 && c->space == space) {
            close(c->fd);
            c->fd = -1;
        }
    folder_of(v, space, path, sizeof path);
    if (space->listener >= 0) close(space->listener);
    strcat(path, "/control");
    unlink(path);
    *strrchr(path, '/') = 0;
    rmdir(path);
    space->used = false;
}

// space_set sets the limits that are given.
bool space_set(struct space *space, const struct args *a, struct reply *r) {
    const char *memory = option(a, "pinned-memory-limit");
    const char *threads = option(a, "active-thread-percentage");
    const char *priority = option(a, "client-priority");
    struct space next = *space;
    uint64_t bytes = 0;
    if (!memory && !threads && !priority) {
        refuse(r, "At least one limit is required");
        return false;
    }
    if ((memory && !mps_size(memory, &bytes)) || (threads && !mps_percent(threads, &next.percent)) ||
        (priority && (strlen(priority) != 1 || (*priority != '0' && *priority != '1')))) {
        refuse(r, "Invalid limit: memory as 4G, percentage up to 100, priority 0 or 1");
        return false;
    }
    for (unsigned d = 0; memory && d < SIM_MAX_DEVICES; d++) next.pinned[d] = bytes;
    if (priority) next.priority = *priority - '0';
    if (may_set(r, "set the limits")) *space = next;
    return !r->bad;
}

static struct space *find(struct server *v, const char *name, struct reply *r) {
    for (struct space *space = v->spaces; name && space < v->spaces + MPS_SPACES; space++)
        if (space->used && strcmp(space->name, name) == 0) return space;
    refuse(r, "Namespace '%s' not found on server '%s'", name ? name : "", v->name);
    return NULL;
}

static void create(const struct args *a, struct reply *r) {
    struct server *v = server_named(option(a, "server"), r);
    if (!v || !owns(v, a, "NAMESPACE CREATE", r) || !good_name(a->words[0], r)) return;
    for (struct space *space = v->spaces; space < v->spaces + MPS_SPACES; space++)
        if (space->used && strcmp(space->name, a->words[0]) == 0) {
            refuse(r, "Namespace '%s' already exists", a->words[0]);
            return;
        }
    if (!space_add(v, a->words[0])) refuse(r, "Failed to create namespace '%s'", a->words[0]);
}

static void fail_client(struct sim_client *c, pid_t pid, void *arg) {
    (void)pid;
    if (strcmp(c->mps.space, ((struct space *)arg)->name) == 0) sim_mps_fail(mps.s, c, 810);
}

static void delete(const struct args *a, struct reply *r) {
    struct server *v = server_named(option(a, "server"), r);
    struct space *space = v ? find(v, a->words[0], r) : NULL;
    if (!space || !owns(v, a, "NAMESPACE DELETE", r)) return;
    if (space == v->spaces) {
        refuse(r, "The default namespace cannot be deleted");
        return;
    }
    if (!flag(a, "force") && server_client_count(v, space)) {
        refuse(r, "Namespace '%s' has active clients", space->name);
        return;
    }
    each_client(v, fail_client, space);
    space_remove(v, space);
}

enum { NAME, SERVER, STATUS, MEMORY, THREADS, PRIORITY, PIPE, FIELDS };
static const char *const names[] = {"NAME", "SERVER", "SERVER STATUS", "PINNED MEMORY LIMIT",
                                    "ACTIVE THREAD PERCENTAGE", "CLIENT PRIORITY", "PIPE DIRECTORY"};
static const char *const fields[] = {"name", "server", "server-status", "pinned-memory-limit",
                                     "active-thread-percentage", "client-priority", "pipe-directory"};

static void fill(struct server *v, struct space *space, char cells[FIELDS][512]) {
    snprintf(cells[NAME], 512, "%s", space->name);
    snprintf(cells[SERVER], 512, "%s", v->name);
    snprintf(cells[STATUS], 512, "%s", v3_status(v));
    snprintf(cells[MEMORY], 512, "-");
    if (space->pinned[0]) size_text(space->pinned[0], cells[MEMORY], 512);
    snprintf(cells[THREADS], 512, "%.2f", space->percent);
    snprintf(cells[PRIORITY], 512, "%d", space->priority);
    folder_of(v, space, cells[PIPE], 512);
}

static void list(const struct args *a, struct reply *r) {
    static const unsigned widths[] = {16, 13, 14, 21, 26, 15, 48};
    struct table t;
    const char *of = option(a, "server");
    if ((of && !server_named(of, r)) || !table_begin(&t, a, r, names, widths, FIELDS)) return;
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++) {
        if (!v->used || v->deleted || (of && strcmp(v->name, of) != 0)) continue;
        for (struct space *space = v->spaces; space < v->spaces + MPS_SPACES; space++) {
            char cells[FIELDS][512];
            const char *row[FIELDS];
            if (!space->used || (a->words[0] && strcmp(space->name, a->words[0]) != 0)) continue;
            fill(v, space, cells);
            for (unsigned i = 0; i < FIELDS; i++) row[i] = cells[i];
            table_row(&t, row);
        }
    }
}

static void get(const struct args *a, struct reply *r) {
    char cells[FIELDS][512];
    struct server *v = server_named(a->words[1], r);
    struct space *space = v ? find(v, a->words[0], r) : NULL;
    if (!space) return;
    fill(v, space, cells);
    for (unsigned i = 0; a->words[2] && i < FIELDS; i++)
        if (is_field(a->words[2], fields[i])) {
            say(r, "%s\n", cells[i]);
            return;
        }
    refuse(r, "Unknown field '%s'", a->words[2] ? a->words[2] : "");
}

static void set(const struct args *a, struct reply *r) {
    struct server *v = server_named(option(a, "server"), r);
    struct space *space = v ? find(v, a->words[0], r) : NULL;
    if (!space || !owns(v, a, "NAMESPACE SET", r)) return;
    if (server_client_count(v, space))
        refuse(r, "Namespace '%s' has active clients", space->name);
    else
        space_set(space, a, r);
}

void v3_space(const char *verb, const struct args *a, struct reply *r) {
    if (strcmp(verb, "create") == 0) create(a, r);
    else if (strcmp(verb, "delete") == 0) delete(a, r);
    else if (strcmp(verb, "list") == 0) list(a, r);
    else if (strcmp(verb, "get") == 0) get(a, r);
    else set(a, r);
}
