// SPDX-License-Identifier: Apache-2.0
//
// The way of a launch that its lane can't pay for.
//
// Invariants:
//   1. A launch is charged what its kind has cost so far, before or shortly after
//      it was launched (a lane's allowance); once its batch is through, the
//      difference to the measurement.
//   2. At most VGPU_BATCHES batches of a stream are under way and not measured: two
//      milliseconds of what is expected, or eight launches that are longer than a
//      batch; only one launch of a function of which nothing is known.
//   3. Nothing here is recorded into a stream that is capturing, and no capture
//      is disturbed.
//   4. Whoever waits holds no lock, and has ended its batch: the pause isn't in it.

#include "compute.h"

#include "bucket.h"
#include "sample.h"

#define SMALLEST_STEP (VGPU_BATCH_NS / VGPU_BATCH_LAUNCHES)

static bool is_captured(const struct vgpu_launch *launch) {
    int status = CU_CAPTURE_NONE;
    cu_result (*real)(cu_stream, int *) =
        vgpu_real(launch->per_thread ? VGPU_cuStreamIsCapturing_ptsz : VGPU_cuStreamIsCapturing);
    return real(launch->stream, &status) != CU_OK || status != CU_CAPTURE_NONE;
}

// Before and after the library's own calls: events belong to the stream's
// context, and while any thread captures in the strict mode, asking about events
// would break its capture unless the asking thread is in the relaxed mode.
static void enter(struct vgpu_launch *launch) {
    if (launch->context != NULL)
        VGPU_REAL(cuCtxPushCurrent_v2)(launch->context);
    if (launch->capture_mode >= 0)
        VGPU_REAL(cuThreadExchangeStreamCaptureMode)(&launch->capture_mode);
}

static void leave(struct vgpu_launch *launch) {
    cu_ctx popped;
    if (launch->capture_mode >= 0)
        VGPU_REAL(cuThreadExchangeStreamCaptureMode)(&launch->capture_mode);
    if (launch->context != NULL)
        VGPU_REAL(cuCtxPopCurrent_v2)(&popped);
}

// The lane goes on with launches of another kind that is known.
static bool turn_to(struct vgpu_lane *lane, uint64_t key) {
    uint64_t ns;
    if (!vgpu_cost_get(&lane->track->timeline->costs, key, &ns))
        return false;
    lane->spent += lane->launches * lane->each;
    lane->count += lane->launches;
    lane->mixed |= lane->count != 0;
    lane->launches = 0;
    lane->key = key;
    lane->each = ns;
    lane->step = ns < SMALLEST_STEP ? SMALLEST_STEP : ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
    return true;
}

// What the launch is expected to cost.
static void expect(struct vgpu_launch *launch, uint64_t like) {
    const struct vgpu_costs *costs = &launch->lane->track->timeline->costs;
    bool measured = vgpu_cost_get(costs, launch->key, &launch->ns);
    launch->known = measured || vgpu_cost_get(costs, like, &launch->ns);
    if (!launch->known)
        launch->ns = 0;
    launch->by_itself = !measured || launch->ns >= VGPU_BATCH_NS || launch->lane->track->probe;
}

static bool must_wait(const struct vgpu_launch *launch) {
    const struct vgpu_track *track = launch->lane->track;
    return track->pending == VGPU_BATCHES || (track->pending != 0 && !launch->known);
}

static void close_batch(struct vgpu_launch *launch) {
    struct vgpu_track *track = launch->lane->track;
    if (track->open)
        vgpu_sample_end(track, launch->stream, launch->per_thread, launch->now);
}

// Waits until the launch may be made. Returns under the lock, with an open batch
// for it if it can be measured.
static void prepare(struct vgpu_launch *launch, uint64_t like) {
    struct vgpu_track *track = launch->lane->track;
    for (;;) {
        struct vgpu_turn turn = vgpu_turn(track->process, track->device, launch->now);
        vgpu_sample_collect(track);
        expect(launch, like);
        struct vgpu_batch *batch = vgpu_batch_open(track);
        if (launch->by_itself || batch->expected >= VGPU_BATCH_NS - SMALLEST_STEP ||
            batch->launches >= VGPU_BATCH_LAUNCHES - 1)
            close_batch(launch);
        uint64_t due = vgpu_bucket_due(track->process, track->device, &turn, launch->now, launch->ns,
                                       launch->by_itself ? 0 : VGPU_BATCH_NS);
        if (due > launch->now) {
            close_batch(launch);
            vgpu_unlock(&track->timeline->lock);
            launch->now = vgpu_bucket_sleep(track->process, track->device, launch->now, due);
            vgpu_lock(&track->timeline->lock);
        } else if (!track->open && must_wait(launch)) {
            vgpu_sample_wait(track);
            launch->now = vgpu_now();
        } else {
            break;
        }
    }
    if (track->open)
        return;
    if (launch->by_itself)
        launch->now = vgpu_now();
    vgpu_sample_begin(track, launch->stream, launch->per_thread, launch->now);
    vgpu_batch_open(track)->unknown = !launch->known;
    if (launch->by_itself)
        vgpu_batch_open(track)->gap = vgpu_now() - launch->now;
}

static void begin(struct vgpu_launch *launch, struct vgpu_process *process, uint64_t like) {
    cu_stream stream = vgpu_stream(launch->stream, launch->per_thread);
    struct vgpu_lane *lane = vgpu_lane_of(stream);
    cu_ctx current = NULL;
    if (!vgpu_lane_is(lane, stream) && vgpu_lane_open(process, lane, stream) != CU_OK)
        return;
    if (lane->track == NULL)
        return;
    if (lane->key != launch->key && lane->left != 0 && turn_to(lane, launch->key) &&
        vgpu_launch_paid(launch->key, launch->stream, launch->per_thread))
        return;
    launch->lane = lane;
    if (stream > VGPU_PER_THREAD && VGPU_REAL(cuCtxGetCurrent)(&current) == CU_OK && current != lane->ctx)
        launch->context = lane->ctx;
    enter(launch);
    launch->now = vgpu_now();
    vgpu_lock(&lane->track->timeline->lock);
    vgpu_lane_settle(lane, launch->now);
    prepare(launch, like);
    leave(launch);
}

void vgpu_launch_begin(struct vgpu_launch *launch, uint64_t key, uint64_t like, cu_stream stream,
                       bool per_thread) {
    cu_result why;
    struct vgpu_process *process = vgpu_process(&why);
    *launch = (struct vgpu_launch){.key = key, .stream = stream, .per_thread = per_thread, .capture_mode = -1};
    if (process == NULL)
        return;
    if (atomic_load_explicit(&process->captures, memory_order_relaxed) != 0) {
        if (is_captured(launch))
            return;
        launch->capture_mode = CU_CAPTURE_RELAXED;
    }
    begin(launch, process, like);
}

// The lane may launch on by itself, until the batch is full.
static void allow(struct vgpu_lane *lane, uint64_t key) {
    const struct vgpu_batch *batch = vgpu_batch_open(lane->track);
    uint64_t room = batch->expected < VGPU_BATCH_NS ? VGPU_BATCH_NS - batch->expected : 0;
    uint64_t launches = VGPU_BATCH_LAUNCHES - batch->launches;
    if (room > launches * SMALLEST_STEP)
        room = launches * SMALLEST_STEP;
    if (turn_to(lane, key))
        lane->left = room < lane->size ? (uint32_t)room : lane->size;
    if (lane->size < VGPU_BATCH_NS)
        lane->size *= 2;
}

void vgpu_launch_end(struct vgpu_launch *launch, cu_result result) {
    if (launch->lane == NULL)
        return;
    struct vgpu_track *track = launch->lane->track;
    enter(launch);
    if (result == CU_OK) {
        uint64_t *longest = &track->process->region.counters->header.device[track->device].longest_ns;
        uint64_t before = vgpu_load(longest), less = before - launch->ns;
        vgpu_store(longest, launch->ns > before ? launch->ns : before - less / (less < before / 2 ? 8 : 256));
        vgpu_sample_add(track, launch->key, 1, launch->ns, launch->now);
        if (launch->by_itself) {
            launch->now = vgpu_now();
            close_batch(launch);
            track->probe = false;
        } else if (track->open) {
            allow(launch->lane, launch->key);
        }
    }
    vgpu_unlock(&track->timeline->lock);
    leave(launch);
}
