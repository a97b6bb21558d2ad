// SPDX-License-Identifier: Apache-2.0
//
// memory.c: charging device memory.
//
// Invariants:
// - The sum over live slots never passes a device's (or MIG instance's)
//   capacity, nor a cgroup's hard limit: a process adds to its own slot first
//   and takes it back when the sum is too large, so two that race may both be
//   refused but never both succeed.
// - A refusal is final only when it was found again under the state lock, with
//   the slots of dead processes reclaimed.
// - Nor does an MPS client pass its limit of device memory.
// - What outlives its owner, in another process's use (holds.c) or because it is not
//   free yet (clients.c), counts too, but neither in a MIG instance nor against a
//   cgroup's limit.
// - The ordinary path takes no lock and makes no system call; it reads one
//   cache line per slot that was ever used.
#include "state.h"

#include <sched.h>

static bool covers(struct sim_client *c, unsigned limit) {
    return atomic_load(&c->limits[limit / 64]) >> (limit % 64) & 1;
}

// sim_used returns the bytes that clients hold on the device, or in one of its
// GPU instances when gi is an instance's id.
uint64_t sim_used(struct sim_state *s, unsigned dev, uint32_t gi) {
    uint64_t sum = 0;
    unsigned high = atomic_load(&s->client_high);
    for (unsigned i = 0; i < high; i++) {
        struct sim_work *w = &s->clients[i].work[dev];
        uint64_t used = atomic_load(&w->used_bytes);
        if (used && (gi == SIM_WHOLE_GPU || w->gi == gi)) sum += used;
        uint64_t until = atomic_load(&w->freeing_until_ns);
        if (until && gi == SIM_WHOLE_GPU && until > sim_now()) sum += atomic_load(&w->freeing_bytes);
    }
    return atomic_load(&s->hold_high) && gi == SIM_WHOLE_GPU ? sum + sim_hold_used(s, dev) : sum;
}

uint64_t sim_limit_used(struct sim_state *s, unsigned limit, unsigned dev) {
    uint64_t sum = 0;
    unsigned high = atomic_load(&s->client_high);
    for (unsigned i = 0; i < high; i++)
        if (covers(&s->clients[i], limit)) sum += atomic_load(&s->clients[i].work[dev].used_bytes);
    return sum;
}

// sim_capacity returns the bytes that clients may hold together.
uint64_t sim_capacity(struct sim_state *s, unsigned dev, uint32_t gi) {
    struct sim_device *d = &s->devices[dev];
    if (gi == SIM_WHOLE_GPU) return d->total_bytes - d->reserved_bytes;
    const struct sim_model *m = sim_model(d->model);
    const struct sim_profile *p = m ? sim_profile_by_id(m, d->gi[gi].profile) : NULL;
    return p ? p->memory_mib * SIM_MIB : 0;
}

static uint64_t room(uint64_t capacity, uint64_t used) {
    return used < capacity ? capacity - used : 0;
}

// sim_available returns how much more this client could be granted now.
uint64_t sim_available(struct sim_state *s, struct sim_client *c, unsigned dev) {
    uint32_t gi = c->work[dev].gi;
    uint64_t left = room(sim_capacity(s, dev, gi), sim_used(s, dev, gi)), pinned = c->mps.pinned[dev];
    if (pinned && room(pinned, atomic_load(&c->work[dev].used_bytes)) < left)
        left = room(pinned, atomic_load(&c->work[dev].used_bytes));
    for (unsigned i = 0; i < SIM_MAX_LIMITS / 64; i++) {
        for (uint64_t m = atomic_load(&c->limits[i]); m; m &= m - 1) {
            unsigned l = i * 64 + (unsigned)__builtin_ctzll(m);
            uint64_t more =
                room(atomic_load(&s->limits[l].hard[dev]), sim_limit_used(s, l, dev));
            if (more < left) left = more;
        }
    }
    return left;
}

// fits reports whether what is charged now is within every bound on c.
static bool fits(struct sim_state *s, struct sim_client *c, unsigned dev) {
    uint32_t gi = c->work[dev].gi;
    uint64_t pinned = c->mps.pinned[dev];
    if (sim_used(s, dev, gi) > sim_capacity(s, dev, gi)) return false;
    if (pinned && atomic_load(&c->work[dev].used_bytes) > pinned) return false;
    for (unsigned i = 0; i < SIM_MAX_LIMITS / 64; i++) {
        for (uint64_t m = atomic_load(&c->limits[i]); m; m &= m - 1) {
            unsigned l = i * 64 + (unsigned)__builtin_ctzll(m);
            if (sim_limit_used(s, l, dev) > atomic_load(&s->limits[l].hard[dev])) return false;
        }
    }
    return true;
}

static bool try_charge(struct sim_state *s, struct sim_client *c, unsigned dev, uint64_t bytes) {
    atomic_fetch_add(&c->work[dev].used_bytes, bytes);
    if (fits(s, c, dev)) return true;
    atomic_fetch_sub(&c->work[dev].used_bytes, bytes);
    return false;
}

bool sim_charge(struct sim_state *s, struct sim_client *c, unsigned dev, uint64_t bytes) {
    if (bytes > s->devices[dev].total_bytes) return false;
    if (try_charge(s, c, dev, bytes)) return true;
    sim_lock(s);
    sim_reap(s);
    bool ok = try_charge(s, c, dev, bytes);
    // Another process may have been between its addition and its retreat.
    for (int again = 0; !ok && again < 3; again++) {
        sched_yield();
        ok = try_charge(s, c, dev, bytes);
    }
    sim_unlock(s);
    return ok;
}

// sim_uncharge takes off no more than there is: a terminated MPS client's memory
// is gone before the client itself frees it.
void sim_uncharge(struct sim_client *c, unsigned dev, uint64_t bytes) {
    _Atomic uint64_t *used = &c->work[dev].used_bytes;
    uint64_t now = atomic_load(used);
    while (!atomic_compare_exchange_weak(used, &now, now > bytes ? now - bytes : 0)) {
    }
}
