// SPDX-License-Identifier: Apache-2.0
//
// Tracks and lanes.
//
// Invariants:
//   1. A track lives until its stream or context is destroyed; both bump the
//      epoch first, and no lane of an older epoch is used.
//   2. A lane is its thread's own. What it holds untold is at most one allowance,
//      and is told before the lane serves another stream, and before its own
//      thread destroys a stream.

#include "compute.h"

#include "bucket.h"
#include "memory.h"
#include "sample.h"

#include <stdlib.h>

#define FIRST_ALLOWANCE 16000u      // ns

_Thread_local struct vgpu_lane vgpu_lanes[VGPU_LANES] __attribute__((tls_model("initial-exec")));

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
        entry = (struct vgpu_entry){key, (uintptr_t)track, here->ctx};
        if (!vgpu_table_put(&process->memory, &entry, &old)) {
            free(track);
            track = NULL;
        }
    }
    vgpu_unlock(&process->track_lock);
    return track;
}

void vgpu_lane_settle(struct vgpu_lane *lane, uint64_t now) {
    for (uint64_t left = lane->kinds; left != 0; left &= left - 1)
        vgpu_kind_settle(lane, &lane->kind[__builtin_ctzll(left)]);
    vgpu_store(&lane->track->process->region.counters->header.device[lane->track->device].last_launch, now);
    if (lane->count != 0)
        vgpu_sample_add(lane->track, lane->mixed ? 0 : lane->key, lane->count,
                        (struct vgpu_price){lane->spent, lane->spent + lane->spent_over, lane->count}, now);
    lane->spent = lane->spent_over = lane->count = 0;
    lane->mixed = false;
    lane->left = 0;
}

// Settles a lane that is about to serve another stream, or never again.
static void vacate(struct vgpu_lane *lane) {
    if (lane->stream != NULL && lane->track != NULL && lane->epoch == vgpu_epoch()) {
        vgpu_lock(&lane->track->timeline->lock);
        vgpu_lane_settle(lane, vgpu_now());
        vgpu_unlock(&lane->track->timeline->lock);
    }
    *lane = (struct vgpu_lane){0};
}

cu_result vgpu_lane_open(struct vgpu_process *process, struct vgpu_lane *lane, cu_stream stream) {
    struct vgpu_here here;
    cu_ctx own = NULL, popped;
    unsigned epoch = vgpu_epoch();
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
    if (vgpu_quota(process, here.device) != 0 && (track = find_track(process, stream, &here)) == NULL)
        return CU_OUT_OF_MEMORY;
    *lane = (struct vgpu_lane){.stream = stream, .ctx = here.ctx, .epoch = epoch, .track = track,
                               .size = FIRST_ALLOWANCE};
    return CU_OK;
}

void vgpu_forget_stream(struct vgpu_process *process, cu_stream stream) {
    struct vgpu_entry entry;
    for (int i = 0; i < VGPU_LANES; i++)
        vacate(&vgpu_lanes[i]);
    vgpu_forget_contexts();
    if (!vgpu_table_take(&process->memory, track_key(stream, NULL), &entry))
        return;
    struct vgpu_track *track = (struct vgpu_track *)(uintptr_t)entry.value;
    vgpu_lock(&track->timeline->lock);
    vgpu_sample_drop(track);
    vgpu_unlock(&track->timeline->lock);
    for (int i = 0; i <= VGPU_BATCHES; i++) {
        if (track->ring[i].start != NULL)
            VGPU_REAL(cuEventDestroy_v2)(track->ring[i].start);
        if (track->ring[i].end != NULL)
            VGPU_REAL(cuEventDestroy_v2)(track->ring[i].end);
    }
    free(track);
}

void vgpu_drop_track(uint64_t value) { free((void *)(uintptr_t)value); }
