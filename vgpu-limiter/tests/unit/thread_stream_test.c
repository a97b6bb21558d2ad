// SPDX-License-Identifier: Apache-2.0
//
// lane_test COUNTERS: what a thread launches by itself is told to the stream's batch as it
// was charged, of however many kinds it is, and never more than it was allowed; and what is
// neither known nor to be measured isn't launched.

#include "check.h"
#include "compute/throttle.h"
#include "compute/timing.h"

#include <string.h>

#define KINDS 200

static struct vgpu_process process;
static char a_context[16], an_event[16], a_stream[64] __attribute__((aligned(256))); // a lane each

static cu_result get_current(cu_ctx *ctx) {
    *ctx = (cu_ctx)(void *)a_context;
    return CU_OK;
}
static cu_result get_device(cu_device *device) {
    *device = 0;
    return CU_OK;
}
static cu_result create_event(cu_event *event, unsigned flags) {
    *event = (cu_event)(void *)an_event;
    return flags != 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result recorded = CU_OK;
static cu_result record(cu_event event, cu_stream stream) {
    if (recorded != CU_OK)
        return recorded;
    return event != NULL && stream != NULL ? CU_OK : CU_INVALID_VALUE;
}

static cu_result query(cu_event event) { return event != NULL ? CU_NOT_READY : CU_INVALID_VALUE; }
static cu_result exchange_mode(int *mode) { return *mode >= 0 ? CU_OK : CU_INVALID_VALUE; }

void vgpu_test_step(void) {}

static struct vgpu_stream_state *volatile tracks[4]; // where the sanitizer looks for what has been lost

static struct vgpu_thread_stream *open_lane(unsigned i) {
    cu_stream stream = (cu_stream)(void *)(a_stream + 16 * i);
    CHECK(vgpu_thread_stream_open(&process, stream) == CU_OK);
    tracks[i] = vgpu_thread_stream_of(stream)->state;
    return vgpu_thread_stream_of(stream);
}

// As the driver's functions are called in turn with so many grids.
static uint64_t key_of(unsigned kind) {
    return vgpu_cost_key(a_context, (uint64_t)(1 + kind) << 32 | 1, UINT64_C(1) << 32 | 32, UINT64_C(1) << 32 | 1);
}

static void takes(struct vgpu_thread_stream *lane, uint64_t key, uint64_t ns, uint64_t worst) {
    vgpu_cost_learn(&lane->state->ctx_state->costs, key, 0, VGPU_APART); // more than once, it is a mean
    struct vgpu_cost *cost = lane->state->ctx_state->costs.cost;
    for (size_t i = 0; i < VGPU_COSTS; i++)
        if (cost[i].key == key) {
            cost[i].ns = ns;
            cost[i].worst = worst;
        }
    CHECK(vgpu_thread_stream_learn(lane, key));
}

// Launches kinds in turn, from this one on, until the allowance is used up or so many are
// made; returns how many were.
static unsigned launches(struct vgpu_thread_stream *lane, unsigned kind, unsigned kinds, unsigned most) {
    unsigned n = 0;
    while (n < most && vgpu_launch_paid(key_of(kind + n % kinds), lane->stream, false))
        n++;
    return n;
}

static struct vgpu_batch *begin(struct vgpu_thread_stream *lane, unsigned kind, uint64_t ns) {
    if (lane->state->open)
        vgpu_timing_end(lane->state, lane->stream, false, 1);
    lane->state->pending = 0;
    struct vgpu_batch *batch = vgpu_batch_open(lane->state);
    CHECK(vgpu_timing_begin(lane->state, lane->stream, false, 1));
    vgpu_thread_stream_allow(lane, key_of(kind), ns);
    return batch;
}

static void is_told(struct vgpu_thread_stream *lane, const struct vgpu_batch *batch, uint64_t count, uint64_t ns, uint64_t over, uint64_t key) {
    vgpu_thread_stream_settle(lane, 1);
    CHECK(batch->launches == count && batch->expected == ns && batch->over == over && batch->key == key);
    CHECK(launches(lane, 0, 1, 1) == 0); // no more without a new allowance
    vgpu_thread_stream_settle(lane, 1);
    CHECK(batch->launches == count && batch->expected == ns);
}

// Of one kind: as many as are allowed, for whatever they take.
static void of_one_kind(void) {
    struct vgpu_thread_stream *lane = open_lane(0);
    static const struct { uint64_t ns, worst; } kinds[] = {
        {0, 0}, {1, 1}, {0, VGPU_BATCH_NS}, {1, VGPU_SMALLEST_STEP}, {VGPU_SMALLEST_STEP, VGPU_SMALLEST_STEP},
        {4000, 5000}, {100000, 120000}, {VGPU_BATCH_NS, VGPU_BATCH_NS}};
    for (unsigned kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
        uint64_t ns = kinds[kind].ns, worst = kinds[kind].worst, step = worst < VGPU_SMALLEST_STEP ? VGPU_SMALLEST_STEP : worst;
        takes(lane, key_of(kind), ns, worst);
        for (uint64_t allowed = 1; allowed <= VGPU_BATCH_NS; allowed += allowed < 10 ? 1 : VGPU_BATCH_NS / 10 - 1) {
            const struct vgpu_batch *batch = begin(lane, kind, allowed);
            uint64_t count = allowed / step;
            CHECK(launches(lane, kind, 1, 1000) == count);
            is_told(lane, batch, count, count * ns, count * (worst - ns), count != 0 ? key_of(kind) : 0);
        }
    }
    takes(lane, key_of(100), VGPU_BATCH_NS, VGPU_BATCH_NS + 1); // longer than any allowance
    begin(lane, 100, VGPU_BATCH_NS);
    CHECK(launches(lane, 100, 1, 1) == 0);
}

// Of many kinds, all of which are known to the thread at the same time.
static void of_many_kinds(void) {
    struct vgpu_thread_stream *lane = open_lane(1);
    for (unsigned kind = 0; kind < KINDS; kind++)
        takes(lane, key_of(kind), 1000 + kind, 2000 + 2 * kind);
    for (unsigned kind = 0; kind < KINDS; kind++)
        CHECK(vgpu_launch_class_of(vgpu_launch_class_name(lane, key_of(kind))) != NULL);
    for (unsigned kind = 0; kind + 50 <= KINDS; kind += 50) {
        uint64_t ns = 0, worst = 0;
        for (unsigned i = 0; i < 50; i++) {
            ns += 1000 + kind + i;
            worst += 2000 + 2 * (kind + i);
        }
        const struct vgpu_batch *batch = begin(lane, kind, VGPU_BATCH_NS);
        CHECK(launches(lane, kind, 50, 50) == 50);
        is_told(lane, batch, 50, ns, worst - ns, 0);
        batch = begin(lane, kind, worst);
        CHECK(launches(lane, kind, 50, 1000) == 50);
        is_told(lane, batch, 50, ns, worst - ns, 0);
        batch = begin(lane, kind, VGPU_BATCH_NS);
        CHECK(launches(lane, kind + 1, 1, 2) == 2); // none of the kind that it was given for
        is_told(lane, batch, 2, 2 * (1001 + kind), 2 * (1001 + kind), 0);
    }
}

// A price that changes counts from then on, and other lanes' kinds are theirs.
static void what_changes(void) {
    struct vgpu_thread_stream *lane = open_lane(2), *other = open_lane(3);
    takes(lane, key_of(1), 3000, 4000);
    takes(other, key_of(1), 5000, 6000);
    const struct vgpu_batch *batch = begin(lane, 1, 100000);
    const struct vgpu_batch *others = begin(other, 1, 100000);
    CHECK(launches(lane, 1, 1, 3) == 3 && launches(other, 1, 1, 2) == 2);
    takes(lane, key_of(1), 7000, 8000);
    CHECK(launches(lane, 1, 1, 1) == 1);
    is_told(lane, batch, 4, 3 * 3000 + 7000, 4 * 1000, key_of(1));
    is_told(other, others, 2, 10000, 2000, key_of(1));
}

// Where no event can be recorded for want of memory.
static void what_is_not_measured(void) {
    struct vgpu_thread_stream *lane = open_lane(0);
    struct vgpu_launch launch;
    uint64_t launches = vgpu_load(&process.region.counters->header.device[0].launches);
    takes(lane, key_of(1), 3000, 4000);
    recorded = CU_OUT_OF_MEMORY;
    CHECK(vgpu_launch_begin(&launch, key_of(1001), 0, lane->stream, false) == CU_OUT_OF_MEMORY);
    CHECK(vgpu_load(&process.region.counters->header.device[0].launches) == launches);
    CHECK(vgpu_launch_begin(&launch, key_of(1), 0, lane->stream, false) == CU_OK); // what it costs is known
    vgpu_launch_end(&launch, CU_OK);
    CHECK(vgpu_load(&process.region.counters->header.device[0].launches) == launches + 1);
    recorded = CU_INVALID_VALUE; // is the driver's to say of the launch
    CHECK(vgpu_launch_begin(&launch, key_of(1001), 0, lane->stream, false) == CU_OK);
    vgpu_launch_end(&launch, CU_INVALID_VALUE);
    recorded = CU_OK;
    CHECK(vgpu_launch_begin(&launch, key_of(1001), 0, lane->stream, false) == CU_OK);
    vgpu_launch_end(&launch, CU_OK);
    CHECK(lane->state->pending == 1);
}

// A launch that fails leaves no batch behind in which the next one would be measured: how long
// the program does something else in between isn't the device's.
static void what_fails(void) {
    struct vgpu_thread_stream *lane = open_lane(1);
    const struct vgpu_ctx_state *timeline = lane->state->ctx_state;
    struct vgpu_launch launch;
    takes(lane, key_of(1), 3000, 4000);
    vgpu_timing_drop(lane->state);
    unsigned under_way = timeline->under_way;
    for (unsigned kind = 1; kind <= 1002; kind += 1001) { // one that is known, one that isn't
        CHECK(vgpu_launch_begin(&launch, key_of(kind), 0, lane->stream, false) == CU_OK);
        CHECK(lane->state->open && timeline->under_way == under_way + 1);
        vgpu_launch_end(&launch, CU_INVALID_VALUE);
        CHECK(!lane->state->open && lane->state->pending == 0 && timeline->under_way == under_way);
    }
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    atomic_store(&vgpu_reals[VGPU_cuCtxGetCurrent], (void *)get_current);
    atomic_store(&vgpu_reals[VGPU_cuCtxGetDevice], (void *)get_device);
    atomic_store(&vgpu_reals[VGPU_cuEventCreate], (void *)create_event);
    atomic_store(&vgpu_reals[VGPU_cuEventRecord], (void *)record);
    CHECK(vgpu_region_join(argv[1], 1, &process.region) == NULL);
    atomic_store(&vgpu_reals[VGPU_cuEventQuery], (void *)query);
    atomic_store(&vgpu_reals[VGPU_cuThreadExchangeStreamCaptureMode], (void *)exchange_mode);
    process.limits.device_count = process.device_count = 1;
    process.limits.device[0].core_percent = 30;
    static const uint64_t limited = 1;
    process.launches.limited = &limited;
    process.launches.measures = true;
    memset(process.index, -1, sizeof process.index);
    process.index[0] = 0;
    atomic_store(&process.attached, true);
    atomic_store(&vgpu_process_page, &process);

    of_one_kind();
    of_many_kinds();
    what_changes();
    what_is_not_measured();
    what_fails();
    return 0;
}
