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

#include "compute.h"

#include "bucket.h"
#include "ended.h"
#include "memory.h"
#include "sample.h"

#include <stdlib.h>
#include <sys/mman.h>

#define STREAMS 64 // of so many
#define MEASURED_STREAMS 16
#define FIRST_ALLOWANCE 16000u      // ns
#define TELLING_TRIES 1000
#define TELLING_PAUSE_NS 20000

static const struct vgpu_ways nobodys;
#define NOBODYS ((struct vgpu_ways *)(uintptr_t)&nobodys)
_Thread_local struct vgpu_ways *vgpu_ways __attribute__((tls_model("initial-exec"))) = NOBODYS;

static uint64_t track_key(cu_stream stream, cu_ctx ctx) {
    static _Thread_local char own __attribute__((tls_model("initial-exec")));
    uint64_t id = (uintptr_t)stream;
    if (stream == VGPU_PER_THREAD) // a default stream belongs to context and thread
        id = (uintptr_t)ctx ^ (uintptr_t)&own << 4;
    else if (stream == VGPU_LEGACY)
        id = (uintptr_t)ctx;
    return vgpu_key(VGPU_STREAM, id);
}

// The context's timeline, made on first use; the table keeps it under the
// context's key with one bit changed, which no handle has.
static struct vgpu_timeline *timeline_of(struct vgpu_process *process, cu_ctx ctx) {
    uint64_t key = vgpu_key(VGPU_STREAM, (uintptr_t)ctx) ^ 2;
    struct vgpu_entry entry, old;
    if (vgpu_table_get(&process->memory, key, &entry))
        return (struct vgpu_timeline *)(uintptr_t)entry.value;
    struct vgpu_timeline *timeline = calloc(1, sizeof *timeline);
    entry = (struct vgpu_entry){key, (uintptr_t)timeline, ctx};
    return timeline != NULL && vgpu_table_put(&process->memory, &entry, &old) ? timeline : NULL;
}

// How many of a new stream's launches are to be measured by themselves. Of streams that are
// waited for and end after a few launches none would be otherwise: what the first few of a
// kind have taken, with whatever the process was stopped for meanwhile, would be charged for
// ever. Of several streams' at the same time all are measured, or what they have under way
// would be in each other's.
static unsigned first_probes(struct vgpu_timeline *timeline) {
    unsigned n = timeline->streams++ % STREAMS;
    if (n == 0)
        atomic_store(&timeline->measures, atomic_exchange(&timeline->unmeasured, false));
    return atomic_load(&timeline->measures) && n < MEASURED_STREAMS ? VGPU_BATCHES - 1 : 0;
}

static struct vgpu_track *find_track(struct vgpu_process *process, cu_stream stream,
                                     const struct vgpu_here *here) {
    struct vgpu_entry entry, old;
    uint64_t key = track_key(stream, here->ctx);
    if (vgpu_table_get(&process->memory, key, &entry))
        return (struct vgpu_track *)(uintptr_t)entry.value;
    vgpu_lock(&process->track_lock);
    struct vgpu_track *track = NULL;
    struct vgpu_timeline *timeline = timeline_of(process, here->ctx);
    if (vgpu_table_get(&process->memory, key, &entry)) {
        track = (struct vgpu_track *)(uintptr_t)entry.value;
    } else if (timeline != NULL && (track = calloc(1, sizeof *track)) != NULL) {
        track->process = process;
        track->timeline = timeline;
        track->device = here->device;
        track->probes = first_probes(timeline);
        entry = (struct vgpu_entry){key, (uintptr_t)track, here->ctx};
        if (!vgpu_table_put(&process->memory, &entry, &old)) {
            free(track);
            track = NULL;
        }
    }
    vgpu_unlock(&process->track_lock);
    return track;
}

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
        if (!vgpu_table_get(&process->memory, track_key(lane->stream, lane->ctx), &entry) ||
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
    if (measures && (track = find_track(process, stream, &here)) == NULL)
        return CU_OUT_OF_MEMORY;
    *lane = (struct vgpu_lane){.stream = stream, .ctx = here.ctx, .epoch = epoch, .track = track,
                               .size = FIRST_ALLOWANCE, .freed = vgpu_quota(process, here.device) == 0,
                               .device = (uint8_t)here.device};
    return CU_OK;
}

void vgpu_forget_stream(struct vgpu_process *process, cu_stream stream) {
    struct vgpu_entry entry;
    cu_ctx popped;
    for (int i = 0; i < VGPU_LANES && vgpu_ways != NOBODYS; i++)
        vacate(&vgpu_ways->lanes[i]);
    vgpu_forget_contexts();
    vgpu_lock(&process->track_lock);
    bool found = vgpu_table_take(&process->memory, track_key(stream, NULL), &entry);
    vgpu_unlock(&process->track_lock);
    if (!found)
        return;
    struct vgpu_track *track = (struct vgpu_track *)(uintptr_t)entry.value;
    bool pushed = VGPU_REAL(cuCtxPushCurrent_v2)(entry.owner) == CU_OK;
    int mode = vgpu_capture_mode(CU_CAPTURE_RELAXED);
    vgpu_lock(&track->timeline->lock);
    track->ends = true;
    if (track->open && atomic_load_explicit(&process->captures, memory_order_relaxed) == 0)
        vgpu_sample_end(track, stream, false, vgpu_now());
    vgpu_sample_collect(track);
    vgpu_ended_collect(process, track->timeline);
    bool kept = vgpu_ended_keep(process, track, entry.owner);
    if (!kept)
        vgpu_sample_drop(track);
    vgpu_unlock(&track->timeline->lock);
    vgpu_capture_mode(mode);
    if (pushed)
        VGPU_REAL(cuCtxPopCurrent_v2)(&popped);
    if (!kept)
        vgpu_track_free(track);
}

void vgpu_drop_track(uint64_t value) { free((void *)(uintptr_t)value); }
