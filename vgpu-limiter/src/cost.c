// SPDX-License-Identifier: Apache-2.0
//
// Learning what launches cost.
//
// Invariants:
//   1. A cost follows the mean of what is counted, since the cost of one kind of
//      launch may depend on its data, and since of several streams' launches at the
//      same time some are counted too long and others as nothing.
//   2. What a launch takes undisturbed follows the low quarter of what lies between
//      its events: neighbours' turns lengthen some and shorten none. Streams of the
//      same process may lengthen all: the mean is the most that is believed.

#include "cost.h"

#define WEIGHT 6 // of what is known, to 1 of what is new

static uint64_t at_most(uint64_t value, uint64_t limit) { return value < limit ? value : limit; }

static uint64_t key_of(const struct vgpu_cost *cost) {
    return atomic_load_explicit(&cost->key, memory_order_relaxed);
}

static void put(struct vgpu_cost *cost, uint64_t key, uint64_t ns, uint64_t least) {
    atomic_store_explicit(&cost->key, 0, memory_order_relaxed);
    atomic_store_explicit(&cost->ns, ns, memory_order_relaxed);
    cost->least = least;
    atomic_store_explicit(&cost->key, key, memory_order_relaxed);
}

static uint64_t follow(uint64_t least, uint64_t whole) {
    uint64_t step = least / 16 + 50;
    return whole > least ? least + at_most(whole - least, step) : least - at_most(least - whole, 3 * step);
}

uint64_t vgpu_cost_learn(struct vgpu_costs *costs, uint64_t key, uint64_t ns, uint64_t whole,
                         uint32_t own) {
    struct vgpu_cost *cost = &costs->cost[vgpu_cost_place(key)];
    struct vgpu_cost *other = &costs->cost[vgpu_cost_place(key) ^ 1];
    uint64_t known;
    if (vgpu_cost_get(costs, key, &known)) {
        if (key_of(cost) != key)
            cost = other;
        ns = (known * WEIGHT + ns) / (WEIGHT + 1);
        whole = follow(cost->least, at_most(whole, ns * 1000 / own));
    } else if (key_of(cost) != 0) { // the older of the place's kinds goes
        put(other, key_of(cost), atomic_load_explicit(&cost->ns, memory_order_relaxed), cost->least);
    }
    put(cost, key, ns, whole);
    return whole;
}
