// SPDX-License-Identifier: Apache-2.0
//
// clients.c: CUDA processes that connect to become clients.
//
// Invariants:
// - A client waits while its server starts, and while another user's server still
//   has clients; it is refused while its server is in FAULT.
// - Without multi-user mode one user's server runs at a time (legacy), and a daemon
//   that is not root serves its own user only.
// - Who connects is what the kernel says: its slot must be the connecting process's.
#define _GNU_SOURCE
#include "mps.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    NOT_PERMITTED = 800,
    CONNECTION_FAILED = 805,
    SERVER_NOT_READY = 807,
};

static void answer(struct conn *c, const struct mps_grant *grant) {
    send(c->fd, grant, sizeof *grant, MSG_NOSIGNAL);
    close(c->fd);
    c->fd = -1;
}

static void turn_away(struct conn *c, uint32_t result) {
    struct mps_grant grant = {.result = result};
    log_line("NEW CLIENT %d from user %u: refused with error %u", (int)c->pid, (unsigned)c->uid, result);
    answer(c, &grant);
}

static void admit(struct conn *c, struct server *v) {
    struct space *space = c->space ? c->space : &v->spaces[0];
    struct mps_grant grant = {.server = v->slot, .generation = v->generation,
                              .count = v->device_count, .percent = space->percent};
    memcpy(grant.devices, v->devices, sizeof grant.devices);
    memcpy(grant.pinned, space->pinned, sizeof grant.pinned);
    memcpy(grant.space, space->name, sizeof grant.space);
    memcpy(grant.shared, v->shared, sizeof grant.shared);
    answer(c, &grant);
}

// automatic returns the server that protocol 3 has for each user.
static struct server *automatic(uid_t uid) {
    char name[65];
    snprintf(name, sizeof name, "uid_%u", (unsigned)uid);
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (v->used && !v->deleted && strcmp(v->name, name) == 0) return v;
    return v3_add_server(name, uid);
}

// server_for returns the server that a client belongs to, if it runs or has been
// started; NULL while another user's is in the way.
static struct server *server_for(struct conn *c) {
    uid_t uid = mps.multiuser ? 0 : c->uid;
    if (mps.protocol == 3 && !c->server) c->server = automatic(uid);
    if (mps.protocol == 3) return c->server && server_start(c->server) ? c->server : NULL;
    struct server *other = NULL;
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++) {
        if (!v->used || !v->pid || v->draining) {
            if (v->used && v->pid) other = v;
            continue;
        }
        if (v->uid == uid) return v;
        other = v;
    }
    if (!other) {
        struct server *v = server_add("", uid);
        return v && server_start(v) ? v : NULL;
    }
    struct sim_client *slot = server_slot(other);
    if (slot && !other->draining) {
        sim_lock(mps.s);
        sim_reap(mps.s);
        bool idle = !sim_mps_clients(mps.s, slot);
        sim_unlock(mps.s);
        if (idle) server_end(other, MPS_END);
    }
    return NULL;
}

static void attend(struct conn *c) {
    struct server *v = server_for(c);
    if (!v || !v->ready) {
        if (!c->waiting)
            log_line("NEW CLIENT %d from user %u: Server is not ready, push client to pending list",
                     (int)c->pid, (unsigned)c->uid);
        c->waiting = true;
        return;
    }
    if (strcmp(server_status(v), "ACTIVE") == 0)
        admit(c, v);
    else
        turn_away(c, SERVER_NOT_READY);
}

// client_hello is a client's first and only packet.
void client_hello(struct conn *c) {
    struct sim_client *slot = c->hello.slot < SIM_MAX_CLIENTS ? &mps.s->clients[c->hello.slot] : NULL;
    bool its = slot && atomic_load(&slot->in_use) &&
               atomic_load(&slot->generation) == c->hello.generation &&
               sim_client_pid(mps.s, slot) == c->pid;
    bool own = geteuid() == 0 || c->uid == geteuid();
    if (c->server && !mps.multiuser && c->uid != c->server->uid) own = false;
    if (!its)
        turn_away(c, CONNECTION_FAILED);
    else if (!own)
        turn_away(c, NOT_PERMITTED);
    else if (mps.quitting)
        turn_away(c, SERVER_NOT_READY);
    else
        attend(c);
}

// clients_retry looks after those that wait.
void clients_retry(void) {
    for (struct conn *c = mps.conns; c < mps.conns + MPS_CONNS; c++)
        if (c->fd >= 0 && c->waiting) attend(c);
}

// clients_fail tells those that wait for a server that it doesn't start.
void clients_fail(struct server *v) {
    for (struct conn *c = mps.conns; c < mps.conns + MPS_CONNS; c++)
        if (c->fd >= 0 && c->waiting && (c->server ? c->server == v : mps.multiuser || c->uid == v->uid))
            turn_away(c, CONNECTION_FAILED);
}

// each_client visits a server's live clients with their PIDs, -1 for one that is
// in no PID namespace of ours.
void each_client(struct server *v, void (*visit)(struct sim_client *, pid_t, void *), void *arg) {
    struct sim_client *slot = server_slot(v);
    if (!slot) return;
    sim_lock(mps.s);
    sim_reap(mps.s);
    for (unsigned i = 0; i < atomic_load(&mps.s->client_high); i++) {
        struct sim_client *c = &mps.s->clients[i];
        if (sim_mps_server(mps.s, c) == slot && atomic_load(&c->in_use))
            visit(c, sim_client_pid(mps.s, c), arg);
    }
    sim_unlock(mps.s);
}

struct wanted {
    pid_t pid;
    struct sim_client *found;
};

static void match(struct sim_client *c, pid_t pid, void *arg) {
    struct wanted *w = arg;
    if (pid == w->pid) w->found = c;
}

struct sim_client *client_by_pid(struct server *v, pid_t pid) {
    struct wanted w = {.pid = pid};
    each_client(v, match, &w);
    return w.found;
}
