// SPDX-License-Identifier: Apache-2.0
//
// legacy.c: the commands of the legacy interface (protocol 2).
//
// Invariants:
// - The words are the real programs' as far as those say them on a machine without a
//   GPU (test/nvidia holds the two side by side): most of what is wrong gets an empty
//   answer, and its reason is in the log alone.
#define _GNU_SOURCE
#include "mps.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS 8

// legacy_server finds a server by its PID; a word that is no number, or none, counts as 0.
struct server *legacy_server(const char *pid, struct reply *r) {
    struct server *v = server_by_pid(pid);
    if (!v) refuse(r, "Server %ld not found", pid ? strtol(pid, NULL, 10) : 0);
    return v;
}

static void server_list(char **w, struct reply *r) {
    (void)w;
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (v->used && v->pid) say(r, "%d\n", (int)v->pid);
}

// Branch 550 has it, 535 not.
static void status(char **w, struct reply *r) {
    if (!w[1] || strtol(w[1], NULL, 10) <= 0) {
        refuse(r, "A server PID is required");
        return;
    }
    struct server *v = legacy_server(w[1], r);
    if (v) say(r, "%s\n", server_status(v));
}

static void start(char **w, struct reply *r) {
    char *end;
    unsigned long uid = w[1] && w[2] ? strtoul(w[2], &end, 10) : 0;
    if (!w[1] || strcmp(w[1], "-uid") != 0 || !w[2] || end == w[2]) {
        refuse(r, "A user id (UID) is required to start a new server");
        return;
    }
    if (geteuid() != 0 && uid != geteuid()) {
        refuse(r, "Failed to start a server for user %lu: insufficient privileges", uid);
        return;
    }
    if (mps.multiuser) uid = 0;
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (v->used && v->pid && !v->draining) {
            refuse(r, "A server is already running: %d", (int)v->pid);
            return;
        }
    struct server *v = server_add("", (uid_t)uid);
    if (!v || !server_start(v)) refuse(r, "Failed to start a server for user %lu", uid);
}

static void print_pid(struct sim_client *c, pid_t pid, void *r) {
    (void)c;
    say(r, "%d\n", (int)pid);
}

static void client_list(char **w, struct reply *r) {
    struct server *v = legacy_server(w[1], r);
    if (v) each_client(v, print_pid, r);
}

struct row {
    struct reply *r;
    struct server *v;
    unsigned id;
};

static void print_client(struct sim_client *c, pid_t pid, void *arg) {
    struct row *row = arg;
    char path[64], uuid[64];
    struct stat ns = {0};
    snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)pid);
    stat(path, &ns);
    for (unsigned i = 0; i < row->v->device_count; i++) {
        unsigned dev = row->v->devices[i];
        if (!atomic_load(&c->work[dev].contexts)) continue;
        device_uuid(mps.s, dev, uuid, sizeof uuid);
        say(row->r, "%-8d  %-4u  %-8d  %-17.17s  %-11lu  %s\n", (int)pid, row->id, (int)row->v->pid,
            uuid, (unsigned long)ns.st_ino, c->name);
    }
    row->id++;
}

static bool any_server(void) {
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (v->used && v->pid) return true;
    return false;
}

static void ps(char **w, struct reply *r) {
    bool one = w[1] && strcmp(w[1], "-p") == 0;
    struct server *only = one ? legacy_server(w[2], r) : NULL;
    if (one && !only) {
        legacy_server(w[2], r);  // it says so twice
        say(r, "\n");
        return;
    }
    if (!any_server()) {
        refuse(r, "Server not found");
        return;
    }
    say(r, "PID       ID    SERVER    DEVICE             NAMESPACE    COMMAND\n");
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (v->used && v->pid && (!only || v == only)) {
            struct row row = {r, v, 0};
            each_client(v, print_client, &row);
        }
}

struct device_row {
    struct reply *r;
    unsigned dev;
};

static void print_on_device(struct sim_client *c, pid_t pid, void *arg) {
    struct device_row *row = arg;
    if (atomic_load(&c->work[row->dev].contexts)) say(row->r, "%d\n", (int)pid);
}

static void device_client_list(char **w, struct reply *r) {
    struct server *only = w[1] ? legacy_server(w[1], r) : NULL;
    if ((w[1] && !only) || !any_server()) return;
    for (unsigned i = 0; i < mps.device_count; i++) {
        char uuid[64];
        device_uuid(mps.s, mps.devices[i], uuid, sizeof uuid);
        say(r, "%s\n", uuid);
        struct device_row row = {r, mps.devices[i]};
        for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
            if (v->used && v->pid && (!only || v == only)) each_client(v, print_on_device, &row);
    }
}

static void terminate(char **w, struct reply *r) {
    struct server *v = legacy_server(w[1], r);
    struct sim_client *c = v && w[2] ? client_by_pid(v, (pid_t)atoi(w[2])) : NULL;
    if (!v) {
        refuse(r, "Server %ld not found!\n1", w[1] ? strtol(w[1], NULL, 10) : 0);
        return;
    }
    if (!c) {
        refuse(r, "Client %s not found", w[2] ? w[2] : "");
        return;
    }
    sim_lock(mps.s);
    sim_mps_fail(mps.s, c, 810);  // CUDA_ERROR_MPS_CLIENT_TERMINATED
    sim_unlock(mps.s);
    log_line("Client %s terminated", w[2]);
}

static void shut_down(char **w, struct reply *r) {
    struct server *v = legacy_server(w[1], r);
    if (v) server_end(v, w[2] && strcmp(w[2], "-f") == 0 ? MPS_END : MPS_DRAIN);
}

static void set_priority(char **w, struct reply *r) {
    long priority = w[1] ? strtol(w[1], NULL, 10) : 0;
    if (priority < 0 || priority > 1)
        refuse(r, "Invalid priority value - must be 0 or 1!");
    else if (may_set(r, "set the default client priority"))
        mps.priority = (int)priority;
}

static void get_priority(char **w, struct reply *r) {
    (void)w;
    say(r, "%d\n", mps.priority);
}

static const struct {
    const char *name;
    void (*run)(char **words, struct reply *r);
    unsigned since;  // the driver branch that has it first, as far as we have seen
} commands[] = {
    {"get_server_list", server_list, 0},
    {"get_server_status", status, 550},
    {"start_server", start, 0},
    {"shutdown_server", shut_down, 0},
    {"get_client_list", client_list, 0},
    {"get_device_client_list", device_client_list, 0},
    {"terminate_client", terminate, 0},
    {"ps", ps, 0},
    {"set_default_active_thread_percentage", legacy_set_default_percent, 0},
    {"get_default_active_thread_percentage", legacy_get_default_percent, 0},
    {"set_active_thread_percentage", legacy_set_server_percent, 0},
    {"get_active_thread_percentage", legacy_get_server_percent, 0},
    {"set_default_device_pinned_mem_limit", legacy_set_default_limit, 0},
    {"get_default_device_pinned_mem_limit", legacy_get_default_limit, 0},
    {"set_device_pinned_mem_limit", legacy_set_server_limit, 0},
    {"get_device_pinned_mem_limit", legacy_get_server_limit, 0},
    {"set_default_client_priority", set_priority, 0},
    {"get_default_client_priority", get_priority, 0},
    {"quit", NULL, 0},
};

bool legacy_command(char *line, struct reply *r) {
    char *words[WORDS + 1] = {NULL}, *rest = line, *word;
    unsigned n = 0;
    while (n < WORDS && (word = strsep(&rest, " \t\r\n")))
        if (*word) words[n++] = word;
    for (unsigned i = 0; n && i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].name, words[0]) != 0 || branch() < commands[i].since) continue;
        if (commands[i].run) {
            commands[i].run(words, r);
            return false;
        }
        mps.quitting = true;
        for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
            if (v->used) server_end(v, MPS_DRAIN);
        return true;
    }
    refuse(r, "Unknown command \"%s\"", n ? words[0] : "");
    return false;
}
