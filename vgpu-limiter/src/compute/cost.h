// SPDX-License-Identifier: Apache-2.0
//
// What launches cost, as measured so far: a small hash table per context.

#ifndef VGPU_COST_H
#define VGPU_COST_H

#include "runtime/base.h"

#define VGPU_COSTS 2048
#define VGPU_COST_WAYS 4
#define VGPU_COSTS_LATELY 8

// One launch class: a function with its grid and block, or a graph. Read
// without a lock by every launch: a cost that is just being replaced may be
// taken for another's once.
struct vgpu_cost {
    _Atomic uint64_t key; // 0 for none; odd otherwise
    _Atomic uint64_t ns, worst, times;
    // Under the context state's lock.
    uint64_t beside; // measurements beside others since the last one apart; VGPU_NEVER_APART if there was none
};

#define VGPU_NEVER_APART UINT64_MAX

// What a launch is expected to take on the device, the most that it may take as
// far as is known, and how many measurements say so.
struct vgpu_price {
    uint64_t ns, worst, times;
};

struct vgpu_costs {
    // Under the context state's lock: how often something was learned, and of which keys lately.
    uint64_t learned, lately[VGPU_COSTS_LATELY];
    struct vgpu_cost cost[VGPU_COSTS];
};

// Mixes what tells one launch class from another.
static inline uint64_t vgpu_cost_key(const void *what, uint64_t a, uint64_t b, uint64_t c) {
    uint64_t key = (uintptr_t)what * UINT64_C(0x9e3779b97f4a7c15) + a * UINT64_C(0xc2b2ae3d27d4eb4f) +
                   b * UINT64_C(0x165667b19e3779f9) + c * UINT64_C(0xd6e8feb86659fd93);
    return (key ^ key >> 32) | 1;
}

// A key has this place and the next ones, VGPU_COST_WAYS in all.
static inline uint64_t vgpu_cost_place(uint64_t key) {
    return (key * UINT64_C(0x9e3779b97f4a7c15) >> 32) % (VGPU_COSTS / VGPU_COST_WAYS) * VGPU_COST_WAYS;
}

// False where nothing is known of it, which is always so of key 0.
static inline bool vgpu_cost_get(const struct vgpu_costs *costs, uint64_t key, struct vgpu_price *price) {
    uint64_t place = vgpu_cost_place(key), last = place + VGPU_COST_WAYS - 1;
    while (place < last && atomic_load_explicit(&costs->cost[place].key, memory_order_relaxed) != key)
        place++;
    price->ns = atomic_load_explicit(&costs->cost[place].ns, memory_order_relaxed);
    price->worst = atomic_load_explicit(&costs->cost[place].worst, memory_order_relaxed);
    price->times = atomic_load_explicit(&costs->cost[place].times, memory_order_relaxed);
    return key != 0 && atomic_load_explicit(&costs->cost[place].key, memory_order_relaxed) == key;
}

// How a measurement was made.
enum vgpu_measured {
    VGPU_BESIDE, // others' work may be in it
    VGPU_AMONG,  // no others', but other streams' of the process
    VGPU_BRIEF,  // the same, where streams end after a few launches
    VGPU_EARLY,  // nothing else was to be, but turns had just changed: good where nothing better is known
    VGPU_APART,  // nothing else was on the device, so it says how long a launch may take
};

// Learns from one measurement. Under the context state's lock.
void vgpu_cost_learn(struct vgpu_costs *costs, uint64_t key, uint64_t ns, enum vgpu_measured how);

// The worst that is known is no worse than the mean any more: what was measured
// lately may hold others' work. Under the context state's lock.
void vgpu_cost_doubt(struct vgpu_costs *costs);

#endif
