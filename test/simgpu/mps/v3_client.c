// SPDX-License-Identifier: Apache-2.0
//
// v3_client.c: clients, in a list, and their end.
//
// Invariant: a client on several devices is listed once, with the ordinals of those
// that it has contexts on.
#define _GNU_SOURCE
#include "mps.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PID, SERVER, DEVICE, SPACE, COMMAND, FIELDS };
static const char *const names[] = {"PID", "SERVER", "DEVICE", "NAMESPACE", "CMD"};

// command_line reads a process's, with blanks between the words.
static void command_line(pid_t pid, const char *otherwise, char *text, size_t length) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, length - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) {
        snprintf(text, length, "%s", otherwise);
        return;
    }
    text[n] = 0;
    while (n > 0 && !text[n - 1]) n--;
    for (ssize_t i = 0; i < n; i++)
        if (!text[i]) text[i] = ' ';
}

static void fill(struct server *v, struct sim_client *c, pid_t pid, char cells[FIELDS][512]) {
    char *devices = cells[DEVICE];
    size_t used = 0;
    snprintf(cells[PID], 512, "%d", (int)pid);
    snprintf(cells[SERVER], 512, "%s", v->name);
    devices[0] = 0;
    for (unsigned i = 0; i < v->device_count && used < 500; i++)
        if (atomic_load(&c->work[v->devices[i]].contexts))
            used += (size_t)snprintf(devices + used, 512 - used, "%s%u", used ? " " : "", i);
    if (!used) strcpy(devices, "-");
    snprintf(cells[SPACE], 512, "%s", c->mps.space);
    command_line(pid, c->name, cells[COMMAND], 512);
}

struct listing {
    struct table t;
    struct server *v;
};

static void print(struct sim_client *c, pid_t pid, void *arg) {
    struct listing *l = arg;
    char cells[FIELDS][512];
    const char *row[FIELDS];
    fill(l->v, c, pid, cells);
    for (unsigned i = 0; i < FIELDS; i++) row[i] = cells[i];
    table_row(&l->t, row);
}

static void list(const struct args *a, struct reply *r) {
    static const unsigned widths[] = {6, 16, 8, 24, 40};
    struct listing l;
    const char *of = option(a, "server");
    if ((of && !server_named(of, r)) || !table_begin(&l.t, a, r, names, widths, FIELDS)) return;
    for (l.v = mps.servers; l.v < mps.servers + MPS_SERVERS; l.v++)
        if (l.v->used && (!of || strcmp(l.v->name, of) == 0)) each_client(l.v, print, &l);
}

// find looks for a client by PID among all servers'.
static struct sim_client *find(const char *text, struct server **of, struct reply *r) {
    pid_t pid = text ? (pid_t)atoi(text) : 0;
    for (struct server *v = mps.servers; pid > 0 && v < mps.servers + MPS_SERVERS; v++) {
        struct sim_client *c = v->used ? client_by_pid(v, pid) : NULL;
        if (!c) continue;
        *of = v;
        return c;
    }
    refuse(r, "Client %s not found", text ? text : "");
    return NULL;
}

static void terminate(const struct args *a, struct reply *r) {
    struct server *v;
    struct sim_client *c = find(a->words[0], &v, r);
    if (!c || !owns(v, a, "CLIENT TERMINATE", r)) return;
    sim_lock(mps.s);
    sim_mps_fail(mps.s, c, 810);  // CUDA_ERROR_MPS_CLIENT_TERMINATED
    sim_unlock(mps.s);
}

void v3_client(const char *verb, const struct args *a, struct reply *r) {
    if (strcmp(verb, "list") == 0) list(a, r);
    else terminate(a, r);
}
