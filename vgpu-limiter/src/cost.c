// SPDX-License-Identifier: Apache-2.0
//
// Learning what launches cost.
//
// Invariants:
//   1. Undisturbed, a cost follows the mean of what is measured: the cost of a
//      kind of launch may depend on its data.
//   2. Crowded, others' turns lengthen some measurements and shorten none: a cost
//      follows the low quarter of what is measured. It rises by at most 1/16 a
//      measurement and falls three times as fast; the more measurements in a row
//      lie above it, the faster it rises.

#include "cost.h"

static uint64_t at_most(uint64_t value, uint64_t limit) { return value < limit ? value : limit; }

void vgpu_cost_learn(struct vgpu_costs *costs, uint64_t key, uint64_t ns, bool crowded) {
    uint64_t place = key * UINT64_C(0x9e3779b97f4a7c15) >> 54, known;
    if (!vgpu_cost_get(costs, key, &known)) {
        // The newer of the two places' kinds stays, unless one is free.
        if (atomic_load_explicit(&costs->cost[place].key, memory_order_relaxed) != 0) {
            struct vgpu_cost *other = &costs->cost[place ^ 1];
            atomic_store_explicit(&other->key, 0, memory_order_relaxed);
            atomic_store_explicit(&other->ns, costs->cost[place].ns, memory_order_relaxed);
            other->rises = costs->cost[place].rises;
            atomic_store_explicit(&other->key, costs->cost[place].key, memory_order_relaxed);
        }
        costs->cost[place].rises = 0;
        atomic_store_explicit(&costs->cost[place].ns, ns, memory_order_relaxed);
        atomic_store_explicit(&costs->cost[place].key, key, memory_order_relaxed);
        return;
    }
    if (atomic_load_explicit(&costs->cost[place].key, memory_order_relaxed) != key)
        place ^= 1;
    struct vgpu_cost *cost = &costs->cost[place];
    uint64_t step = known / 16 + 50;
    cost->rises = crowded && ns > known ? cost->rises + 1 : 0;
    if (!crowded)
        known = ns > known ? known + (ns - known) / 4 : known - (known - ns) / 4;
    else if (ns > known)
        known += at_most(ns - known, step << at_most(cost->rises / 4, 16));
    else
        known -= at_most(known - ns, at_most(3 * step, known));
    atomic_store_explicit(&cost->ns, known, memory_order_relaxed);
}
