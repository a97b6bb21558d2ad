// SPDX-License-Identifier: Apache-2.0
//
// Learning what launches cost.
//
// Invariants:
//   1. A cost follows the mean of what is counted, since the cost of one kind of
//      launch may depend on its data, and since of several streams' launches at the
//      same time some are counted too long and others as nothing.
//   2. The worst of late is never less than the mean, and takes hundreds of
//      measurements to be forgotten: launches that may be as long again are measured
//      one by one (compute.c).

#include "cost.h"

#define WEIGHT 6 // of what is known, to 1 of what is new
#define FORGET 256

static uint64_t key_of(const struct vgpu_cost *cost) {
    return atomic_load_explicit(&cost->key, memory_order_relaxed);
}

static void put(struct vgpu_cost *cost, uint64_t key, struct vgpu_price price) {
    atomic_store_explicit(&cost->key, 0, memory_order_relaxed);
    atomic_store_explicit(&cost->ns, price.ns, memory_order_relaxed);
    atomic_store_explicit(&cost->worst, price.worst, memory_order_relaxed);
    atomic_store_explicit(&cost->times, price.times, memory_order_relaxed);
    atomic_store_explicit(&cost->key, key, memory_order_relaxed);
}

void vgpu_cost_learn(struct vgpu_costs *costs, uint64_t key, uint64_t ns, bool clean) {
    struct vgpu_cost *cost = &costs->cost[vgpu_cost_place(key)];
    struct vgpu_cost *other = &costs->cost[vgpu_cost_place(key) ^ 1];
    struct vgpu_price price = {ns, ns, 1}, known;
    if (vgpu_cost_get(costs, key, &known)) {
        if (key_of(cost) != key)
            cost = other;
        price.ns = (known.ns * WEIGHT + ns) / (WEIGHT + 1);
        known.worst -= (known.worst - known.ns) / FORGET;
        price.times = known.times + 1;
        price.worst = known.worst > price.ns ? known.worst : price.ns;
        if (clean && price.worst < ns)
            price.worst = ns;
    } else if (key_of(cost) != 0) { // the older of the place's kinds goes
        vgpu_cost_get(costs, key_of(cost), &known);
        put(other, key_of(cost), known);
    }
    put(cost, key, price);
}

void vgpu_cost_doubt(struct vgpu_costs *costs) {
    for (size_t i = 0; i < VGPU_COSTS; i++)
        atomic_store_explicit(&costs->cost[i].worst,
                              atomic_load_explicit(&costs->cost[i].ns, memory_order_relaxed),
                              memory_order_relaxed);
}
