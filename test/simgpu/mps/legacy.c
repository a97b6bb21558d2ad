// SPDX-License-Identifier: Apache-2.0
//
// legacy.c: the commands of the legacy interface (protocol 2).
//
// Invariants:
// - A limit holds for servers yet to start (the defaults) or for clients yet to
//   come (a server's); who runs already keeps what he has.
// - A planted refusal or deafness hits the commands that set limits, no others.
#define _GNU_SOURCE
#include "mps.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS 8

// may_set asks the planted faults whether a limit may be set: refused says so, and
// one that is ignored does not.
bool may_set(struct reply *r, const char *what) {
    if (sim_planted(mps.s, mps.mask, SIM_REFUSE)) {
        refuse(r, "Failed to %s", what);
        return false;
    }
    return !sim_planted(mps.s, mps.mask, SIM_IGNORE);
}

static struct server *named(const char *pid, struct reply *r) {
    struct server *v = server_by_pid(pid);
    if (!v) refuse(r, "Server %s not found", pid ? pid : "");
    return v;
}

static void server_list(char **w, struct reply *r) {
    (void)w;
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (v->used && v->pid) say(r, "%d\n", (int)v->pid);
}

static void status(char **w, struct reply *r) {
    struct server *v = named(w[1], r);
    if (v) say(r, "%s\n", server_status(v));
}

static void start(char **w, struct reply *r) {
    char *end;
    unsigned long uid = w[2] ? strtoul(w[2], &end, 10) : 0;
    if (!w[1] || strcmp(w[1], "-uid") != 0 || !w[2] || *end) {
        refuse(r, "Usage: start_server -uid <user id>");
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
    struct server *v = named(w[1], r);
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

static void ps(char **w, struct reply *r) {
    bool one = w[1] && strcmp(w[1], "-p") == 0;
    struct server *only = one ? named(w[2], r) : NULL;
    if (one && !only) return;
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
    struct server *only = w[1] ? named(w[1], r) : NULL;
    if (w[1] && !only) return;
    for (unsigned i = 0; i < mps.device_count; i++) {
        char uuid[64];
        device_uuid(mps.s, mps.devices[i], uuid, sizeof uuid);
        say(r, "%s\n", uuid);
        struct device_row row = {r, mps.devices[i]};
        for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
            if (v->used && v->pid && (!only || v == only)) each_client(v, print_on_device, &row);
    }
}

// set_percent puts a percentage where it belongs and tells what holds now.
static void set_percent(double *at, const char *text, struct reply *r) {
    double percent;
    if (!text || !mps_percent(text, &percent)) {
        refuse(r, "Invalid active thread percentage %s", text ? text : "");
        return;
    }
    if (may_set(r, "set the active thread percentage")) *at = percent;
    if (!r->bad) say(r, "%.1f\n", percent);
}

static void set_default_percent(char **w, struct reply *r) { set_percent(&mps.percent, w[1], r); }

static void get_default_percent(char **w, struct reply *r) {
    (void)w;
    say(r, "%.1f\n", mps.percent);
}

static void set_server_percent(char **w, struct reply *r) {
    struct server *v = named(w[1], r);
    if (v) set_percent(&v->spaces[0].percent, w[2], r);
}

static void get_server_percent(char **w, struct reply *r) {
    struct server *v = named(w[1], r);
    if (v) say(r, "%.1f\n", v->spaces[0].percent);
}

static void print_limit(uint64_t bytes, const char *dev, struct reply *r) {
    char text[32];
    if (!bytes) {
        say(r, "No device pinned memory limit is set for device %s\n", dev);
        return;
    }
    size_text(bytes, text, sizeof text);
    say(r, "%s\n", text);
}

// The default limits keep the name that they were set by, whatever it means.
static void set_default_limit(char **w, struct reply *r) {
    uint64_t bytes;
    if (!w[1] || !w[2] || !mps_size(w[2], &bytes)) {
        refuse(r, "Invalid device pinned memory limit");
        return;
    }
    if (!may_set(r, "set the default device pinned memory limit")) return;
    unsigned n = 0;
    for (unsigned i = 0; i < mps.default_count; i++)
        if (strcmp(mps.defaults[i].device, w[1]) != 0) mps.defaults[n++] = mps.defaults[i];
    if (n == MPS_DEFAULTS) {
        refuse(r, "Too many device pinned memory limits");
        return;
    }
    snprintf(mps.defaults[n].device, sizeof mps.defaults[n].device, "%s", w[1]);
    mps.defaults[n].bytes = bytes;
    mps.default_count = n + 1;
}

static void get_default_limit(char **w, struct reply *r) {
    uint64_t bytes = 0;
    for (unsigned i = 0; w[1] && i < mps.default_count; i++)
        if (strcmp(mps.defaults[i].device, w[1]) == 0) bytes = mps.defaults[i].bytes;
    print_limit(bytes, w[1] ? w[1] : "", r);
}

// server_limit finds where a server keeps the limit of a device.
static uint64_t *server_limit(char **w, struct reply *r) {
    struct server *v = named(w[1], r);
    if (!v) return NULL;
    int dev = w[2] ? device_named(mps.s, v->devices, v->device_count, w[2]) : -1;
    if (dev < 0) refuse(r, "Invalid device %s", w[2] ? w[2] : "");
    return dev < 0 ? NULL : &v->spaces[0].pinned[dev];
}

static void set_server_limit(char **w, struct reply *r) {
    uint64_t bytes, *limit = server_limit(w, r);
    if (!limit) return;
    if (!w[3] || !mps_size(w[3], &bytes))
        refuse(r, "Invalid device pinned memory limit %s", w[3] ? w[3] : "");
    else if (may_set(r, "set the device pinned memory limit"))
        *limit = bytes;
}

static void get_server_limit(char **w, struct reply *r) {
    uint64_t *limit = server_limit(w, r);
    if (limit) print_limit(*limit, w[2], r);
}

static void terminate(char **w, struct reply *r) {
    struct server *v = named(w[1], r);
    struct sim_client *c = v && w[2] ? client_by_pid(v, (pid_t)atoi(w[2])) : NULL;
    if (!v) return;
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
    struct server *v = named(w[1], r);
    if (v) server_end(v, w[2] && strcmp(w[2], "-f") == 0 ? MPS_END : MPS_DRAIN);
}

static void set_priority(char **w, struct reply *r) {
    if (!w[1] || strlen(w[1]) != 1 || (*w[1] != '0' && *w[1] != '1'))
        refuse(r, "Invalid client priority %s", w[1] ? w[1] : "");
    else if (may_set(r, "set the default client priority"))
        mps.priority = *w[1] - '0';
}

static void get_priority(char **w, struct reply *r) {
    (void)w;
    say(r, "%d [%s]\n", mps.priority, mps.priority ? "BELOW NORMAL" : "NORMAL");
}

static void help(char **w, struct reply *r);

static const struct {
    const char *name, *args;
    void (*run)(char **words, struct reply *r);
} commands[] = {
    {"get_server_list", "", server_list},
    {"get_server_status", "<PID>", status},
    {"start_server", "-uid <user id>", start},
    {"shutdown_server", "<PID> [-f]", shut_down},
    {"get_client_list", "<PID>", client_list},
    {"get_device_client_list", "[<PID>]", device_client_list},
    {"terminate_client", "<server PID> <client PID>", terminate},
    {"ps", "[-p PID]", ps},
    {"set_default_active_thread_percentage", "<percentage>", set_default_percent},
    {"get_default_active_thread_percentage", "", get_default_percent},
    {"set_active_thread_percentage", "<PID> <percentage>", set_server_percent},
    {"get_active_thread_percentage", "<PID>", get_server_percent},
    {"set_default_device_pinned_mem_limit", "<dev> <value>", set_default_limit},
    {"get_default_device_pinned_mem_limit", "<dev>", get_default_limit},
    {"set_device_pinned_mem_limit", "<PID> <dev> <value>", set_server_limit},
    {"get_device_pinned_mem_limit", "<PID> <dev>", get_server_limit},
    {"set_default_client_priority", "<priority>", set_priority},
    {"get_default_client_priority", "", get_priority},
    {"help", "", help},
    {"quit", "", NULL},
};

static void help(char **w, struct reply *r) {
    (void)w;
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++)
        say(r, "%s %s\n", commands[i].name, commands[i].args);
}

bool legacy_command(char *line, struct reply *r) {
    char *words[WORDS + 1] = {NULL}, *rest = line, *word;
    unsigned n = 0;
    while (n < WORDS && (word = strsep(&rest, " \t\r\n")))
        if (*word) words[n++] = word;
    if (!n) return false;
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].name, words[0]) != 0) continue;
        if (commands[i].run) {
            commands[i].run(words, r);
            return false;
        }
        mps.quitting = true;
        for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
            if (v->used) server_end(v, MPS_DRAIN);
        return true;
    }
    refuse(r, "Unknown command: %s", words[0]);
    return false;
}
