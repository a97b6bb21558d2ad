// SPDX-License-Identifier: Apache-2.0
//
// Learning what launches cost.
//
// Invariant: a cost follows the mean of what is counted, since the cost of one kind
// of launch may depend on its data, and since of several streams' launches at the
// same time some are counted too long and others as nothing.

#include "cost.h"

#define WEIGHT 6 // of what is known, to 1 of what is new

static uint64_t key_of(const struct vgpu_cost *cost) {
    return atomic_load_explicit(&cost->key, memory_order_relaxed);
}

static void put(struct vgpu_cost *cost, uint64_t key, uint64_t ns) {
    atomic_store_explicit(&cost->key, 0, memory_order_relaxed);
    atomic_store_explicit(&cost->ns, ns, memory_order_relaxed);
    atomic_store_explicit(&cost->key, key, memory_order_relaxed);
}

void vgpu_cost_learn(struct vgpu_costs *costs, uint64_t key, uint64_t ns) {
    struct vgpu_cost *cost = &costs->cost[vgpu_cost_place(key)];
    struct vgpu_cost *other = &costs->cost[vgpu_cost_place(key) ^ 1];
    uint64_t known;
    if (vgpu_cost_get(costs, key, &known)) {
        if (key_of(cost) != key)
            cost = other;
        ns = (known * WEIGHT + ns) / (WEIGHT + 1);
    } else if (key_of(cost) != 0) { // the older of the place's kinds goes
        put(other, key_of(cost), atomic_load_explicit(&cost->ns, memory_order_relaxed));
    }
    put(cost, key, ns);
}
