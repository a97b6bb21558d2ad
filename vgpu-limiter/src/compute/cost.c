// SPDX-License-Identifier: Apache-2.0
//
// Learning what launches cost.
//
// Invariants:
//   1. A cost follows the mean of what is counted, since the cost of one class of
//      launch may depend on its data, and since of several streams' launches at the
//      same time some are counted too long and others as nothing.
//   2. The worst of late is never less than the mean, and takes hundreds of
//      measurements to be forgotten: launches that may be as long again are measured
//      one by one (throttle.c).
//   3. A measurement apart from others' work says more than any beside it: the first
//      one replaces what those have said. A class that has not been measured apart for
//      long is not known by it any more.

#include "compute/cost.h"

#define WEIGHT 6 // of what is known, to 1 of what is new
#define BRIEF_WEIGHT 48 // about as many as are counted at a time: the first of them have all of it
#define FORGET 256       // measurements, or
#define FORGET_NS UINT64_C(5000000000) // of device time in launches of the class
#define STALE 32 // measurements beside others

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

static void move(struct vgpu_cost *to, const struct vgpu_cost *from) {
    put(to, key_of(from), (struct vgpu_price){from->ns, from->worst, from->times});
    to->beside = from->beside;
}

// Where the key is kept; NULL if it isn't.
static struct vgpu_cost *find(struct vgpu_costs *costs, uint64_t key) {
    struct vgpu_cost *cost = &costs->cost[vgpu_cost_place(key)];
    for (int way = 0; way < VGPU_COST_WAYS; way++)
        if (key != 0 && key_of(&cost[way]) == key)
            return &cost[way];
    return NULL;
}

// The place of a key that isn't known yet: the oldest of the classes there goes.
static struct vgpu_cost *make(struct vgpu_costs *costs, uint64_t key) {
    struct vgpu_cost *cost = &costs->cost[vgpu_cost_place(key)];
    for (int way = VGPU_COST_WAYS - 1; way > 0; way--)
        if (key_of(&cost[way - 1]) != 0)
            move(&cost[way], &cost[way - 1]);
    put(cost, key, (struct vgpu_price){0});
    cost->beside = VGPU_NEVER_APART;
    return cost;
}

static bool known_apart(const struct vgpu_cost *cost) { return cost->beside < STALE; }

void vgpu_cost_learn(struct vgpu_costs *costs, uint64_t key, uint64_t ns, enum vgpu_measured how) {
    struct vgpu_cost *cost = find(costs, key);
    if (cost == NULL)
        cost = make(costs, key);
    bool early = how == VGPU_EARLY;
    if (early)
        how = known_apart(cost) ? VGPU_BESIDE : VGPU_APART;
    struct vgpu_price price = {cost->ns, cost->worst, cost->times + 1};
    bool replaces = price.times == 1 || (how == VGPU_APART && cost->beside == VGPU_NEVER_APART);
    if (how == VGPU_BESIDE && known_apart(cost)) {
        cost->beside++;
    } else if (replaces) {
        price.ns = price.worst = ns;
    } else {
        uint64_t part = FORGET_NS / (ns + 1);
        price.worst -= (price.worst - price.ns) / (part < 1 ? 1 : part < FORGET ? part : FORGET);
        uint64_t weight = how != VGPU_BRIEF ? WEIGHT : price.times < BRIEF_WEIGHT ? price.times : BRIEF_WEIGHT;
        price.ns = (price.ns * weight + ns + weight / 2) / (weight + 1);
        if (price.worst < price.ns)
            price.worst = price.ns;
        if (how == VGPU_APART && price.worst < ns)
            price.worst = ns;
    }
    put(cost, key, price);
    costs->lately[costs->learned++ % VGPU_COSTS_LATELY] = key;
    if (how == VGPU_APART && !early)
        cost->beside = 0;
}

void vgpu_cost_doubt(struct vgpu_costs *costs) {
    for (size_t i = 0; i < VGPU_COSTS; i++)
        atomic_store_explicit(&costs->cost[i].worst,
                              atomic_load_explicit(&costs->cost[i].ns, memory_order_relaxed),
                              memory_order_relaxed);
    costs->learned += VGPU_COSTS_LATELY + 1;
}
