// SPDX-License-Identifier: Apache-2.0
//
// What launches cost, as measured so far: a small hash table per context.

#ifndef VGPU_COST_H
#define VGPU_COST_H

#include "base.h"

#define VGPU_COSTS 1024 // a power of two

// One kind of launch: a function with its grid and block, or a graph. Read
// without a lock by every launch: a cost that is just being replaced may be
// taken for another's once.
struct vgpu_cost {
    _Atomic uint64_t key; // 0 for none; odd otherwise
    _Atomic uint64_t ns;
    uint64_t rises; // one after the other, while crowded
};

struct vgpu_costs {
    struct vgpu_cost cost[VGPU_COSTS];
};

// Mixes what tells one kind of launch from another.
static inline uint64_t vgpu_cost_key(const void *what, uint64_t a, uint64_t b, uint64_t c) {
    uint64_t key = (uintptr_t)what * UINT64_C(0x9e3779b97f4a7c15) + a * UINT64_C(0xc2b2ae3d27d4eb4f) +
                   b * UINT64_C(0x165667b19e3779f9) + c * UINT64_C(0xd6e8feb86659fd93);
    return (key ^ key >> 32) | 1;
}

// A key has two places.
static inline bool vgpu_cost_get(const struct vgpu_costs *costs, uint64_t key, uint64_t *ns) {
    const struct vgpu_cost *cost = &costs->cost[key * UINT64_C(0x9e3779b97f4a7c15) >> 54];
    for (int i = 0; i < 2; i++, cost = &costs->cost[(cost - costs->cost) ^ 1])
        if (atomic_load_explicit(&cost->key, memory_order_relaxed) == key) {
            *ns = atomic_load_explicit(&cost->ns, memory_order_relaxed);
            return true;
        }
    return false;
}

// Learns from one measurement. Under the context's lock. `crowded` says that the
// measurement may hold others' time too.
void vgpu_cost_learn(struct vgpu_costs *costs, uint64_t key, uint64_t ns, bool crowded);

#endif
