// SPDX-License-Identifier: Apache-2.0
//
// Tracks and lanes.
//
// Invariants:
//   1. A track lives until its stream or context is destroyed; both bump the
//      epoch first, and no lane of an older epoch launches. What such a lane has launched
//      is told to its track if that is still in the table: track_lock is held from that
//      look until it is told, and while tracks are taken out of the table.
//   2. A lane is its thread's own. What it holds untold is at most one allowance,
//      and is told before the lane serves another stream, before its own thread destroys
//      a stream, and when that ends.
//   3. The kinds that a thread's lanes can pay for share its places: a lane's are those
//      of which it has the bit.

#include "compute/thread_stream.h"

#include "compute/timing.h"
#include "compute/token_bucket.h"

#include <stdlib.h>
#include <sys/mman.h>

#define FIRST_ALLOWANCE 16000u      // ns
#define TELLING_TRIES 1000
#define TELLING_PAUSE_NS 20000

static const struct vgpu_ways nobodys;
#define NOBODYS ((struct vgpu_ways *)(uintptr_t)&nobodys)
_Thread_local struct vgpu_ways *vgpu_ways __attribute__((tls_model("initial-exec"))) = NOBODYS;

static void drop(struct vgpu_lane *lane, unsigned place) {
    lane->kinds[place / 64] &= ~(UINT64_C(1) << place % 64);
    vgpu_ways->kinds[place].name = 0;
}

// The place for a kind that has none: a free one nearby, or its first.
static unsigned make_room(uint64_t name) {
    unsigned first = (unsigned)(vgpu_kind_place(name) - vgpu_ways->kinds), way = 0;
    while (way < VGPU_KIND_WAYS && vgpu_ways->kinds[first ^ way].name != 0)
        way++;
    if (way < VGPU_KIND_WAYS)
        return first ^ way;
    for (int i = 0; i < VGPU_LANES; i++)
        if ((vgpu_ways->lanes[i].kinds[first / 64] >> first % 64 & 1) != 0)
            drop(&vgpu_ways->lanes[i], first);
    return first;
}

static uint64_t parts_of(const struct vgpu_price *price) {
    if (price->worst > VGPU_BATCH_NS)
        return UINT64_MAX;
    uint64_t takes = price->worst < VGPU_SMALLEST_STEP ? VGPU_SMALLEST_STEP : price->worst;
    return vgpu_parts(takes, price->worst - price->ns, price->ns, 1);
}

bool vgpu_lane_learn(struct vgpu_lane *lane, uint64_t key) {
    struct vgpu_price price;
    uint64_t name = vgpu_kind_name(lane, key);
    struct vgpu_kind *kind = vgpu_kind_of(name);
    if (!vgpu_cost_get(&lane->track->timeline->costs, key, &price)) {
        if (kind != NULL)
            drop(lane, (unsigned)(kind - vgpu_ways->kinds));
        return false;
    }
    unsigned place = kind != NULL ? (unsigned)(kind - vgpu_ways->kinds) : make_room(name);
    lane->kinds[place / 64] |= UINT64_C(1) << place % 64;
    vgpu_ways->kinds[place] = (struct vgpu_kind){.name = name, .price = parts_of(&price)};
    return true;
}

void vgpu_lane_learn_all(struct vgpu_lane *lane) {
    const struct vgpu_costs *costs = &lane->track->timeline->costs;
    uint64_t learned = costs->learned;
    if (learned - lane->learned <= VGPU_COSTS_LATELY) {
        for (uint64_t i = lane->learned; i != learned; i++)
            if (vgpu_kind_of(vgpu_kind_name(lane, costs->lately[i % VGPU_COSTS_LATELY])) != NULL)
                vgpu_lane_learn(lane, costs->lately[i % VGPU_COSTS_LATELY]);
    } else {
        for (unsigned place = 0; place < VGPU_KINDS; place++)
            if ((lane->kinds[place / 64] >> place % 64 & 1) != 0)
                vgpu_lane_learn(lane, vgpu_kind_name(lane, vgpu_ways->kinds[place].name));
    }
    lane->learned = learned;
}

void vgpu_lane_allow(struct vgpu_lane *lane, uint64_t key, uint64_t ns) {
    lane->left = vgpu_parts(ns, 0, 0, 0) | VGPU_SPENT;
    lane->first = vgpu_kind_name(lane, key);
    lane->names = 0;
}

// What the lane has launched by its allowance.
static struct vgpu_price untold(const struct vgpu_lane *lane) {
    uint64_t part = (1 << VGPU_TIME_BITS) - 1, spent = lane->left != 0 ? VGPU_SPENT - (lane->left & VGPU_SPENT) : 0;
    uint64_t count = spent & ((1 << VGPU_COUNT_BITS) - 1), ns = spent >> VGPU_COUNT_BITS & part;
    return (struct vgpu_price){ns, ns + (spent >> (VGPU_COUNT_BITS + VGPU_TIME_BITS)), count};
}

void vgpu_lane_settle(struct vgpu_lane *lane, uint64_t now) {
    struct vgpu_price price = untold(lane);
    uint64_t count = price.times;
    vgpu_store(&lane->track->process->region.counters->header.device[lane->track->device].last_launch, now);
    if (count != 0)
        vgpu_sample_add(lane->track, lane->names == count * lane->first ? vgpu_kind_name(lane, lane->first) : 0, count,
                        price, now);
    lane->left = 0;
}

// Where the track has gone, or can't be told.
static void charge(struct vgpu_process *process, const struct vgpu_lane *lane, uint64_t now) {
    struct vgpu_price price = untold(lane);
    struct vgpu_turn turn = vgpu_turn(process, lane->device, now);
    vgpu_bucket_charge(process, lane->device, &turn, now, price.ns, price.times);
}

// Tells what a lane has launched that serves its stream no more, by invariant 1. It doesn't
// wait for ever for who has the locks: this may be the process's end, within a signal's
// handler even, and whoever has the timeline waits for the device, or for a core. Then the
// track isn't told, and a batch may measure what is charged here once more.
static void tell(struct vgpu_lane *lane) {
    struct vgpu_process *process = atomic_load(&vgpu_process_page);
    struct vgpu_entry entry;
    if (lane->left == 0 || process == NULL || !atomic_load(&process->attached) ||
        (int)(lane->epoch - process->first_epoch) < 0) // in a child of fork it is its parent's
        return;
    int cancel = vgpu_cancel_hold();
    for (int i = 0; i < TELLING_TRIES && lane->left != 0; i++) {
        uint64_t now = vgpu_now();
        if (i > 0)
            now = vgpu_pause(now, TELLING_PAUSE_NS);
        if (!vgpu_lock_try(&process->track_lock))
            continue;
        if (!vgpu_table_get(&process->memory, vgpu_stream_key(lane->stream, lane->ctx), &entry) ||
            entry.value != (uintptr_t)lane->track) {
            charge(process, lane, now);
            lane->left = 0;
        } else if (vgpu_lock_try(&lane->track->timeline->lock)) {
            vgpu_lane_settle(lane, now);
            vgpu_lock_free(&lane->track->timeline->lock);
        }
        vgpu_lock_free(&process->track_lock);
    }
    if (lane->left != 0)
        charge(process, lane, vgpu_now());
    lane->left = 0;
    vgpu_cancel_free(cancel);
}

// Of a lane that is about to serve another stream, or never again.
static void vacate(struct vgpu_lane *lane) {
    tell(lane);
    for (unsigned place = 0; place < VGPU_KINDS; place++)
        if ((lane->kinds[place / 64] >> place % 64 & 1) != 0)
            drop(lane, place);
    *lane = (struct vgpu_lane){0};
}

void vgpu_thread_settle(void) {
    for (int i = 0; i < VGPU_LANES && vgpu_ways != NOBODYS; i++)
        vacate(&vgpu_ways->lanes[i]);
}

// The C library's, of threads, not of the process: C has no word for it. C++ programs with
// thread_local objects call the same.
int __cxa_thread_atexit_impl(void (*end)(void *), void *object, void *of);

// Whatever the thread launches after this, from what else ends with it, gets new ways.
static void end_ways(void *ways) {
    for (int i = 0; i < VGPU_LANES; i++)
        vacate(&vgpu_ways->lanes[i]);
    vgpu_ways = NOBODYS;
    munmap(ways, sizeof *vgpu_ways);
}

// The thread gets ways of its own. They aren't malloc's: a program may have one of its own
// that gives no aligned memory.
static bool begin_ways(void) {
    if (vgpu_ways != NOBODYS)
        return true;
    void *ways = mmap(NULL, sizeof *vgpu_ways, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ways == MAP_FAILED)
        return false;
    if (__cxa_thread_atexit_impl(end_ways, ways, NOBODYS) != 0) {
        munmap(ways, sizeof *vgpu_ways);
        return false;
    }
    vgpu_ways = ways;
    return true;
}

cu_result vgpu_lane_open(struct vgpu_process *process, cu_stream stream) {
    struct vgpu_here here;
    cu_ctx own = NULL, popped;
    unsigned epoch = vgpu_epoch();
    if (!begin_ways())
        return CU_OUT_OF_MEMORY;
    struct vgpu_lane *lane = vgpu_lane_of(stream);
    vacate(lane);
    if (stream > VGPU_PER_THREAD && VGPU_REAL(cuStreamGetCtx)(stream, &own) != CU_OK)
        own = NULL;
    if (own != NULL)
        VGPU_REAL(cuCtxPushCurrent_v2)(own);
    cu_result result = vgpu_here(process, &here);
    if (own != NULL)
        VGPU_REAL(cuCtxPopCurrent_v2)(&popped);
    if (result != CU_OK)
        return result;
    struct vgpu_track *track = NULL;
    bool measures = process->pace != NULL || vgpu_quota(process, here.device) != 0;
    if (measures && (track = vgpu_stream_find(process, stream, &here)) == NULL)
        return CU_OUT_OF_MEMORY;
    *lane = (struct vgpu_lane){.stream = stream, .ctx = here.ctx, .epoch = epoch, .track = track,
                               .size = FIRST_ALLOWANCE, .freed = vgpu_quota(process, here.device) == 0,
                               .device = (uint8_t)here.device};
    return CU_OK;
}
