// SPDX-License-Identifier: Apache-2.0
//
// Measures the device time of launches with events around them.
//
// A stream's launches form batches with an event before and one after. While the
// stream is idle between launches, a batch is one launch; while it is known to be
// backlogged, a batch grows, since there is no idle time in it to count.
//
// Invariants:
//   1. A launch is charged what its stream's launches have cost so far, before it
//      runs; once its batch is through, the difference to the measurement.
//   2. Device time is counted once per context: a batch counts from the end of
//      the latest batch counted before it, on whatever stream.
//   3. At most BATCHES × LAUNCHES of a stream are under way and not yet measured;
//      only one before its cost is known.
//   4. Nothing here is recorded into a stream that is capturing, and no capture
//      is disturbed.
//   5. An event that fails costs only the measurement: the expected cost stands.

#include "compute.h"

#include "bucket.h"
#include "memory.h"

#include <stdlib.h>

#define BATCHES 4
#define LAUNCHES 8
#define LONGEST_BATCH_NS 5000000 // expected

struct batch {
    cu_event start, end;
    uint64_t expected; // ns charged for it
    unsigned launches;
    bool paused; // the stream may have been idle in it: not measurable
};

// The streams of one context, whose times can be compared.
struct context {
    struct vgpu_lock lock; // held while events are recorded and asked; waits let go of it
    cu_event last_end;     // end of the latest batch counted
};

struct vgpu_track {
    struct vgpu_process *process;
    struct context *context;
    int device;
    enum vgpu_work work;
    bool known;              // mean has been measured
    uint64_t mean;           // ns per launch
    uint64_t busy_until;     // when the launches so far are expected to be through
    unsigned size;           // launches that the open batch may get; 0 after a pause
    unsigned first, pending; // ring of batches that are closed
    bool open;               // the batch after them has a start
    struct batch ring[BATCHES + 1];
};

static struct batch *open_batch(struct vgpu_track *track) {
    return &track->ring[(track->first + track->pending) % (BATCHES + 1)];
}

static bool record(const struct vgpu_launch *launch, cu_event *event) {
    if (*event == NULL && VGPU_REAL(cuEventCreate)(event, 0) != CU_OK) {
        *event = NULL;
        return false;
    }
    cu_result (*real)(cu_event, cu_stream) =
        vgpu_real(launch->per_thread ? VGPU_cuEventRecord_ptsz : VGPU_cuEventRecord);
    return real(*event, launch->stream) == CU_OK;
}

static void swap(cu_event *a, cu_event *b) {
    cu_event c = *a;
    *a = *b;
    *b = c;
}

// The device time of a batch that is through, by invariant 2. False if it can't
// be told.
static bool measure(struct context *context, struct batch *batch, uint64_t *ns) {
    float ms, since_last;
    if (batch->paused || VGPU_REAL(cuEventElapsedTime)(&ms, batch->start, batch->end) != CU_OK)
        return false;
    if (context->last_end == NULL ||
        VGPU_REAL(cuEventElapsedTime)(&since_last, context->last_end, batch->end) != CU_OK)
        since_last = ms;
    if (since_last > 0)
        swap(&context->last_end, &batch->end);
    if (since_last < ms)
        ms = since_last;
    *ns = ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
    return true;
}

// Counts the batches that are through, in order.
static void collect(struct vgpu_track *track) {
    while (track->pending != 0) {
        struct batch *batch = &track->ring[track->first];
        uint64_t ns;
        if (VGPU_REAL(cuEventQuery)(batch->end) == CU_NOT_READY)
            return;
        if (measure(track->context, batch, &ns)) {
            vgpu_bucket_correct(track->process, track->device, (int64_t)(ns - batch->expected));
            uint64_t each = ns / batch->launches;
            track->mean = track->known ? (track->mean * 3 + each) / 4 : each;
            track->known = true;
        }
        track->first = (track->first + 1) % (BATCHES + 1);
        track->pending--;
    }
}

static void close_batch(struct vgpu_track *track, const struct vgpu_launch *launch) {
    struct batch *batch = open_batch(track);
    track->open = false;
    if (!record(launch, &batch->end))
        return; // the expected cost stands
    track->pending++;
}

// Opens a batch, sized by whether the stream still works on the last one.
static void open_next(struct vgpu_track *track, const struct vgpu_launch *launch) {
    bool grow = track->pending != 0 && track->work == VGPU_KERNEL && track->size != 0;
    track->size = grow && track->size < LAUNCHES ? track->size * 2 : grow ? LAUNCHES : 1;
    while (track->size > 1 && track->size * track->mean > LONGEST_BATCH_NS)
        track->size /= 2;
    struct batch *batch = open_batch(track);
    batch->launches = 0;
    batch->expected = 0;
    batch->paused = false;
    track->open = record(launch, &batch->start);
}

// The batch to wait for before another launch, if any: see invariant 3.
static bool must_wait(const struct vgpu_track *track) {
    return track->pending == BATCHES || (track->pending != 0 && !track->known);
}

static void prepare(struct vgpu_track *track, struct vgpu_launch *launch) {
    struct context *context = track->context;
    vgpu_lock(&context->lock);
    collect(track);
    while (must_wait(track)) {
        cu_event end = track->ring[track->first].end;
        vgpu_unlock(&context->lock);
        VGPU_REAL(cuEventSynchronize)(end);
        vgpu_lock(&context->lock);
        unsigned before = track->pending;
        collect(track);
        if (track->pending == before && before != 0) { // it failed: don't wait for it again
            track->first = (track->first + 1) % (BATCHES + 1);
            track->pending--;
        }
    }
    if (track->open && track->pending == 0 && launch->now > track->busy_until) {
        open_batch(track)->paused = true;
        close_batch(track, launch);
        track->size = 0; // the next batch is one launch again
    }
    if (!track->open)
        open_next(track, launch);
    // Held until vgpu_launch_end, so that the events enclose the launch.
}

// The stream's track, made on first use. NULL if there is no memory: then the
// launch is not measured.
static struct vgpu_track *find_track(struct vgpu_process *process, const struct vgpu_here *here,
                                     enum vgpu_work work, cu_stream stream, bool per_thread) {
    static _Thread_local char own __attribute__((tls_model("initial-exec")));
    uint64_t id = (uintptr_t)stream;
    if (id == 2 || (id == 0 && per_thread)) // a default stream belongs to context and thread
        id = (uintptr_t)here->ctx ^ (uintptr_t)&own << 4;
    else if (id <= 1)
        id = (uintptr_t)here->ctx;
    struct vgpu_entry entry, old;
    uint64_t key = vgpu_key(VGPU_STREAM, id) ^ (uint64_t)work; // handles are aligned
    if (vgpu_likely(vgpu_table_get(&process->memory, key, &entry)))
        return (struct vgpu_track *)(uintptr_t)entry.value;
    uint64_t context_key = vgpu_key(VGPU_STREAM, (uintptr_t)here->ctx) ^ 2;
    if (!vgpu_table_get(&process->memory, context_key, &entry)) {
        struct context *context = calloc(1, sizeof *context);
        entry = (struct vgpu_entry){context_key, (uintptr_t)context, here->ctx};
        if (context == NULL || !vgpu_table_put(&process->memory, entry, &old))
            return NULL;
    }
    struct vgpu_track *track = calloc(1, sizeof *track);
    if (track == NULL)
        return NULL;
    track->process = process;
    track->context = (struct context *)(uintptr_t)entry.value;
    track->device = here->device;
    track->work = work;
    track->size = 1;
    entry = (struct vgpu_entry){key, (uintptr_t)track, here->ctx};
    return vgpu_table_put(&process->memory, entry, &old) ? track : NULL;
}

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

static void begin(struct vgpu_launch *launch, struct vgpu_process *process, enum vgpu_work work) {
    struct vgpu_here here;
    if (vgpu_here(process, &here) != CU_OK || vgpu_quota(process, here.device) == 0)
        return;
    launch->now = vgpu_bucket_wait(process, here.device);
    launch->track = find_track(process, &here, work, launch->stream, launch->per_thread);
    if (launch->track != NULL)
        prepare(launch->track, launch);
}

void vgpu_launch_begin(struct vgpu_launch *launch, enum vgpu_work work, cu_stream stream,
                       bool per_thread) {
    cu_result why;
    cu_ctx current = NULL, own = NULL;
    struct vgpu_process *process = vgpu_process(&why);
    *launch = (struct vgpu_launch){.stream = stream, .per_thread = per_thread, .capture_mode = -1};
    if (process == NULL || VGPU_REAL(cuCtxGetCurrent)(&current) != CU_OK)
        return;
    if ((uintptr_t)stream > 2 && VGPU_REAL(cuStreamGetCtx)(stream, &own) == CU_OK && own != current)
        launch->context = own;
    if (atomic_load_explicit(&process->captures, memory_order_relaxed)) {
        if (is_captured(launch))
            return;
        launch->capture_mode = CU_CAPTURE_RELAXED;
    }
    enter(launch);
    begin(launch, process, work);
    leave(launch);
}

void vgpu_launch_end(struct vgpu_launch *launch, cu_result result) {
    struct vgpu_track *track = launch->track;
    if (track == NULL)
        return;
    enter(launch);
    if (result == CU_OK) {
        struct batch *batch = open_batch(track);
        uint64_t from = track->busy_until > launch->now ? track->busy_until : launch->now;
        track->busy_until = from + track->mean;
        batch->launches++;
        batch->expected += track->mean;
        vgpu_bucket_charge(track->process, track->device, launch->now, track->mean);
        if (track->open && batch->launches >= track->size)
            close_batch(track, launch);
    }
    vgpu_unlock(&track->context->lock);
    leave(launch);
}

static void free_track(struct vgpu_process *process, uint64_t key) {
    struct vgpu_entry entry;
    if (!vgpu_table_take(&process->memory, key, &entry))
        return;
    struct vgpu_track *track = (struct vgpu_track *)(uintptr_t)entry.value;
    for (int i = 0; i <= BATCHES; i++) {
        if (track->ring[i].start != NULL)
            VGPU_REAL(cuEventDestroy_v2)(track->ring[i].start);
        if (track->ring[i].end != NULL)
            VGPU_REAL(cuEventDestroy_v2)(track->ring[i].end);
    }
    free(track);
}

void vgpu_forget_stream(struct vgpu_process *process, cu_stream stream) {
    uint64_t key = vgpu_key(VGPU_STREAM, (uintptr_t)stream);
    free_track(process, key ^ VGPU_KERNEL);
    free_track(process, key ^ VGPU_GRAPH);
}

void vgpu_drop_track(uint64_t value) { free((void *)(uintptr_t)value); }
