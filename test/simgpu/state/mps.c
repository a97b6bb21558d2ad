// SPDX-License-Identifier: Apache-2.0
//
// mps.c: who belongs to whom in the multi-process service, and what faults do.
//
// Invariants:
// - A client names its server by slot and generation, so that a server's
//   successor in the slot never inherits its clients.
// - A server in FAULT is ACTIVE again as soon as none of the clients that the
//   fault hit is left; whoever looks finds that out (sim_mps_settle).
// - A failed client's queued work is gone, and its calls answer what failed it.
// - All functions want the state lock held, but for sim_planted.
#include "state.h"

#include <string.h>

enum { RPC_FAILURE = 806, CLIENT_TERMINATED = 810 };  // as in cuda.h

static bool is_client_of(const struct sim_state *s, const struct sim_client *c,
                         const struct sim_client *server) {
    return atomic_load(&c->in_use) && atomic_load(&c->mps.role) == SIM_MPS_CLIENT &&
           &s->clients[c->mps.server] == server &&
           c->mps.generation == atomic_load(&server->generation);
}

// sim_mps_server returns a client's server, NULL for what is none or has none left.
struct sim_client *sim_mps_server(struct sim_state *s, const struct sim_client *c) {
    if (atomic_load(&c->mps.role) != SIM_MPS_CLIENT) return NULL;
    struct sim_client *server = &s->clients[c->mps.server];
    return atomic_load(&server->in_use) && is_client_of(s, c, server) ? server : NULL;
}

// sim_mps_together reports whether an exclusive device counts both as one process.
bool sim_mps_together(struct sim_state *s, struct sim_client *a, struct sim_client *b) {
    struct sim_client *of_a = sim_mps_server(s, a), *of_b = sim_mps_server(s, b);
    return a == b || (of_a && (of_a == b || of_a == of_b)) || (of_b && of_b == a);
}

unsigned sim_mps_clients(struct sim_state *s, const struct sim_client *server) {
    unsigned n = 0;
    for (unsigned i = 0; i < atomic_load(&s->client_high); i++)
        n += is_client_of(s, &s->clients[i], server);
    return n;
}

// sim_mps_contexts counts the contexts that a server's clients have on a device.
unsigned sim_mps_contexts(struct sim_state *s, const struct sim_client *server, unsigned dev) {
    unsigned n = 0;
    for (unsigned i = 0; i < atomic_load(&s->client_high); i++)
        if (is_client_of(s, &s->clients[i], server))
            n += atomic_load(&s->clients[i].work[dev].contexts);
    return n;
}

// sim_mps_settle returns a server's status as it is now.
unsigned sim_mps_settle(struct sim_state *s, struct sim_client *server) {
    if (server->mps.status != SIM_MPS_FAULT) return server->mps.status;
    sim_reap(s);
    for (unsigned i = 0; i < atomic_load(&s->client_high); i++) {
        struct sim_client *c = &s->clients[i];
        uint32_t failed = atomic_load(&c->mps.failed);
        if (is_client_of(s, c, server) && failed && failed != CLIENT_TERMINATED)
            return SIM_MPS_FAULT;
    }
    return server->mps.status = SIM_MPS_ACTIVE;
}

// drop takes away what c has queued. The caller holds the devices' locks.
static void drop(struct sim_state *s, struct sim_client *c) {
    for (unsigned d = 0; d < s->device_count; d++) {
        sim_advance(s, d, sim_now());
        atomic_store(&c->work[d].queued_ns, atomic_load(&c->work[d].done_ns));
    }
}

static void lock_devices(struct sim_state *s) {
    for (unsigned d = 0; d < s->device_count; d++) sim_lock_device(s, d);
}

static void unlock_devices(struct sim_state *s) {
    for (unsigned d = s->device_count; d-- > 0;) sim_unlock_device(s, d);
}

// sim_mps_fail ends a client's work: with CLIENT_TERMINATED also its contexts and
// memory, as terminate_client does.
void sim_mps_fail(struct sim_state *s, struct sim_client *c, uint32_t code) {
    lock_devices(s);
    atomic_store(&c->mps.failed, code);
    drop(s, c);
    for (unsigned d = 0; code == CLIENT_TERMINATED && d < s->device_count; d++) {
        atomic_store(&c->work[d].used_bytes, 0);
        atomic_store(&c->work[d].contexts, 0);
    }
    unlock_devices(s);
}

// sim_mps_fault is a fatal fault of a client on a device: all clients of its
// server with a context there are hit.
void sim_mps_fault(struct sim_state *s, struct sim_client *by, unsigned dev, uint32_t code) {
    struct sim_client *server = sim_mps_server(s, by);
    if (!server) return;
    server->mps.status = SIM_MPS_FAULT;
    for (unsigned i = 0; i < atomic_load(&s->client_high); i++) {
        struct sim_client *c = &s->clients[i];
        if (is_client_of(s, c, server) && atomic_load(&c->work[dev].contexts)) sim_mps_fail(s, c, code);
    }
}

// sim_mps_orphan is a server's end: its clients can go no further. The caller holds the
// devices' locks too.
void sim_mps_orphan(struct sim_state *s, uint32_t slot) {
    struct sim_client *server = &s->clients[slot];
    for (unsigned i = 0; i < atomic_load(&s->client_high); i++) {
        struct sim_client *c = &s->clients[i];
        if (!is_client_of(s, c, server)) continue;
        atomic_store(&c->mps.failed, RPC_FAILURE);
        drop(s, c);
    }
}

// sim_planted returns the greatest value planted for any of the devices.
uint32_t sim_planted(struct sim_state *s, uint32_t devices, enum sim_plant what) {
    uint32_t most = 0;
    for (unsigned d = 0; d < s->device_count; d++) {
        uint32_t v = atomic_load(&s->devices[d].planted[what]);
        if (devices >> d & 1 && v > most) most = v;
    }
    return most;
}
