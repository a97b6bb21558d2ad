// SPDX-License-Identifier: Apache-2.0
//
// holds.c: processes that use memory which another one has made.
//
// Invariants:
// - Memory is its owner's as long as that lives and hasn't freed it, and counts
//   there. Afterwards it counts here, once, until its last holder has let go.
// - A hold is of one holder: it ends with it (clients.c).
// - Holds change under the state lock; they are read without.
#include "state.h"

static bool lives(struct sim_state *s, uint32_t slot, uint32_t generation) {
    return atomic_load(&s->clients[slot].in_use) &&
           atomic_load(&s->clients[slot].generation) == generation;
}

static bool same(const struct sim_hold *a, const struct sim_hold *b) {
    return a->of.slot == b->of.slot && a->of.generation == b->of.generation && a->of.id == b->of.id;
}

int sim_hold_add(struct sim_state *s, struct sim_client *holder, const struct sim_memory *of) {
    int found = -1;
    sim_lock(s);
    bool exists = lives(s, of->slot, of->generation) && sim_client_pid(s, &s->clients[of->slot]) != 0;
    for (unsigned i = 0; i < SIM_MAX_HOLDS; i++) {
        struct sim_hold *h = &s->holds[i], wanted = {.of = *of};
        if (!atomic_load(&h->in_use)) {
            if (found < 0) found = (int)i;
        } else if (same(h, &wanted)) {
            exists = exists && !atomic_load(&h->freed);
        }
    }
    if (!exists) found = -1;
    if (found >= 0) {
        struct sim_hold *h = &s->holds[found];
        h->of = *of;
        h->holder = (uint32_t)(holder - s->clients);
        atomic_store(&h->freed, 0);
        if ((unsigned)found >= atomic_load(&s->hold_high)) atomic_store(&s->hold_high, (unsigned)found + 1);
        atomic_store(&h->in_use, 1);
    }
    sim_unlock(s);
    return found;
}

void sim_hold_drop(struct sim_state *s, int hold) {
    sim_lock(s);
    atomic_store(&s->holds[hold].in_use, 0);
    sim_unlock(s);
}

// sim_hold_freed uncharges what its owner has freed, at the instant at which it
// becomes its holders'; by itself where it has none.
void sim_hold_freed(struct sim_state *s, struct sim_client *owner, uint64_t id, unsigned dev, uint64_t bytes) {
    if (!atomic_load(&s->hold_high)) {
        sim_uncharge(owner, dev, bytes);
        return;
    }
    struct sim_hold freed = {.of = {.slot = (uint32_t)(owner - s->clients),
                                    .generation = atomic_load(&owner->generation),
                                    .id = id}};
    sim_lock(s);
    for (unsigned i = 0; i < atomic_load(&s->hold_high); i++)
        if (atomic_load(&s->holds[i].in_use) && same(&s->holds[i], &freed))
            atomic_store(&s->holds[i].freed, 1);
    sim_uncharge(owner, dev, bytes);
    sim_unlock(s);
}

// sim_hold_end ends the holds of a slot. The caller holds the state lock.
void sim_hold_end(struct sim_state *s, uint32_t slot) {
    for (unsigned i = 0; i < atomic_load(&s->hold_high); i++)
        if (s->holds[i].holder == slot) atomic_store(&s->holds[i].in_use, 0);
}

static bool orphaned(struct sim_state *s, const struct sim_hold *h, unsigned dev) {
    return atomic_load(&h->in_use) && h->of.dev == dev &&
           (atomic_load(&h->freed) || !lives(s, h->of.slot, h->of.generation));
}

uint64_t sim_hold_used(struct sim_state *s, unsigned dev) {
    uint64_t sum = 0;
    unsigned high = atomic_load(&s->hold_high);
    for (unsigned i = 0; i < high; i++) {
        if (!orphaned(s, &s->holds[i], dev)) continue;
        bool again = false;
        for (unsigned j = 0; j < i && !again; j++)
            again = orphaned(s, &s->holds[j], dev) && same(&s->holds[i], &s->holds[j]);
        if (!again) sum += s->holds[i].of.size;
    }
    return sum;
}
