// SPDX-License-Identifier: Apache-2.0
//
// clients.c: slots of the processes that use CUDA.
//
// Invariants:
// - A slot is in use only between the owner's record lock and its release, both
//   under the state lock; a reaper under that lock therefore never sees a slot
//   in use whose live owner has not locked it yet.
// - Whether an owner lives, and its PID in the reader's namespace, is asked of
//   the kernel by F_OFD_GETLK, which also sees the reader's own record locks.
// - A slot that is reused has another generation.
// - Where the machine takes time to free a killed process's memory, that counts from
//   the moment at which somebody finds the process dead, on the device as a whole.
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct flock slot_byte(struct sim_state *s, struct sim_client *c, short type) {
    return (struct flock){.l_type = type,
                          .l_whence = SEEK_SET,
                          .l_start = (char *)c - (char *)s,
                          .l_len = 1};
}

// sim_client_pid returns the owner's PID as this process's namespace numbers
// it, 0 when the owner is dead, and -1 when it lives outside this namespace.
int sim_client_pid(struct sim_state *s, struct sim_client *c) {
    struct flock fl = slot_byte(s, c, F_WRLCK);
    if (fcntl(sim_fd(), F_OFD_GETLK, &fl) < 0 || fl.l_type == F_UNLCK) return 0;
    return fl.l_pid > 0 ? fl.l_pid : -1;
}

static void clear(struct sim_state *s, struct sim_client *c) {
    sim_hold_end(s, (uint32_t)(c - s->clients));
    if (atomic_load(&c->mps.role) == SIM_MPS_SERVER) sim_mps_orphan(s, (uint32_t)(c - s->clients));
    memset(&c->mps, 0, sizeof c->mps);
    for (unsigned d = 0; d < SIM_MAX_DEVICES; d++) {
        struct sim_work *w = &c->work[d];
        atomic_store(&w->used_bytes, 0);
        atomic_store(&w->queued_ns, 0);
        atomic_store(&w->done_ns, 0);
        atomic_store(&w->contexts, 0);
        w->gi = w->ci = SIM_WHOLE_GPU;
        w->sms = w->rate = w->carry = 0;
        w->corners = w->sharers = 0;
        w->presence = s->machine.percent_of_presence;
        memset(&w->buckets, 0, sizeof w->buckets);
    }
    for (unsigned i = 0; i < SIM_MAX_LIMITS / 64; i++) atomic_store(&c->limits[i], 0);
    atomic_fetch_add(&c->generation, 1);
    atomic_store(&c->in_use, 0);
}

// killed leaves what c held to be freed later. It is added before clear takes it away.
static void killed(struct sim_state *s, struct sim_client *c) {
    uint64_t now = sim_now();
    for (unsigned d = 0; s->machine.free_ns && d < s->device_count; d++) {
        struct sim_work *w = &c->work[d];
        if (atomic_load(&w->freeing_until_ns) <= now) atomic_store(&w->freeing_bytes, 0);
        atomic_fetch_add(&w->freeing_bytes, atomic_load(&w->used_bytes));
        atomic_store(&w->freeing_until_ns, now + s->machine.free_ns);
    }
}

// sim_reap frees the slots of dead owners and says how many. The caller holds
// the state lock.
unsigned sim_reap(struct sim_state *s) {
    unsigned freed = 0;
    for (unsigned i = 0; i < atomic_load(&s->client_high); i++) {
        struct sim_client *c = &s->clients[i];
        if (!atomic_load(&c->in_use) || sim_client_pid(s, c) != 0) continue;
        for (unsigned d = 0; d < s->device_count; d++) sim_lock_device(s, d);
        killed(s, c);
        clear(s, c);
        for (unsigned d = s->device_count; d-- > 0;) sim_unlock_device(s, d);
        freed++;
    }
    return freed;
}

static void describe(struct sim_state *s, struct sim_client *c) {
    c->own_pid = getpid();
    memset(c->name, 0, sizeof c->name);
    FILE *f = fopen("/proc/self/comm", "re");
    if (f) {
        size_t n = fread(c->name, 1, sizeof c->name - 1, f);
        if (n > 0 && c->name[n - 1] == '\n') c->name[n - 1] = 0;
        fclose(f);
    }
    sim_cgroup_self(c->cgroup, sizeof c->cgroup, c->cgroup_ids);
    for (unsigned l = 0; l < SIM_MAX_LIMITS; l++)
        if (atomic_load(&s->limits[l].in_use) && sim_cgroup_covers(&s->limits[l], c))
            atomic_fetch_or(&c->limits[l / 64], 1ull << (l % 64));
}

// sim_attach takes a slot for this process; NULL when all are taken.
struct sim_client *sim_attach(struct sim_state *s) {
    struct sim_client *mine = NULL;
    sim_lock(s);
    sim_reap(s);
    for (unsigned i = 0; i < SIM_MAX_CLIENTS && !mine; i++) {
        struct sim_client *c = &s->clients[i];
        struct flock fl = slot_byte(s, c, F_WRLCK);
        if (atomic_load(&c->in_use) || fcntl(sim_fd(), F_SETLK, &fl) < 0) continue;
        mine = c;
        clear(s, c);
        describe(s, c);
        if (i >= atomic_load(&s->client_high)) atomic_store(&s->client_high, i + 1);
        atomic_store(&c->in_use, 1);
    }
    sim_unlock(s);
    return mine;
}

void sim_detach(struct sim_state *s, struct sim_client *c) {
    struct flock fl = slot_byte(s, c, F_UNLCK);
    sim_lock(s);
    for (unsigned d = 0; d < s->device_count; d++) sim_lock_device(s, d);
    clear(s, c);
    for (unsigned d = s->device_count; d-- > 0;) sim_unlock_device(s, d);
    fcntl(sim_fd(), F_SETLK, &fl);
    sim_unlock(s);
}
