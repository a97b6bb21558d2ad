// SPDX-License-Identifier: Apache-2.0
//
// A stream may be destroyed while it has work: events outlive it, so its batches, the last
// of which ends with it, are measured when they are through. Launches on streams that end at
// once would otherwise cost nothing for good, as nobody would learn what they take; or what
// the short ones among them take, since only these are through by then.
//
// Invariant: a track is in its timeline's ring as long as it is in the table by its own key,
// and has batches that aren't measured; what frees it is that they are, or its context's end.

#include "compute/destroyed_streams.h"

#include "compute/thread_stream.h"
#include "compute/timing.h"
#include "compute/token_bucket.h"
#include "memory/memory.h"

#include <stdlib.h>

#define MOST 256 // for whatever keeps the device from them
#define LOOKS 4

// One bit changed, as for timelines: no handle is like that.
static uint64_t key_of(const struct vgpu_track *track) { return vgpu_key(VGPU_STREAM, (uintptr_t)track) ^ 2; }

// Keeps the track of a stream that ends and is in the table no more, until its batches are
// measured. False: there are none, or too many such streams, or there is no memory.
static bool keep(struct vgpu_process *process, struct vgpu_track *track, cu_ctx ctx) {
    struct vgpu_timeline *timeline = track->timeline;
    struct vgpu_entry old, entry = {key_of(track), (uintptr_t)track, ctx};
    if (track->pending == 0 || timeline->ends == MOST || !vgpu_table_put(&process->memory, &entry, &old))
        return false;
    vgpu_sample_drop_open(track);
    track->next = timeline->ended != NULL ? timeline->ended->next : track;
    if (timeline->ended != NULL)
        timeline->ended->next = track;
    timeline->ended = track;
    timeline->ends++;
    return true;
}

static void free_track(struct vgpu_track *track) {
    for (int i = 0; i <= VGPU_BATCHES; i++) {
        if (track->ring[i].start != NULL)
            VGPU_REAL(cuEventDestroy_v2)(track->ring[i].start);
        if (track->ring[i].end != NULL)
            VGPU_REAL(cuEventDestroy_v2)(track->ring[i].end);
    }
    free(track);
}

void vgpu_ended_collect(struct vgpu_process *process, struct vgpu_timeline *timeline) {
    struct vgpu_entry entry;
    for (unsigned looks = timeline->ends < LOOKS ? timeline->ends : LOOKS; looks > 0; looks--) {
        struct vgpu_track *first = timeline->ended->next;
        vgpu_sample_collect(first);
        if (first->pending != 0) {
            timeline->ended = first; // and so the last
            continue;
        }
        timeline->ended->next = first->next;
        if (timeline->ended == first)
            timeline->ended = NULL;
        timeline->ends--;
        vgpu_table_take(&process->memory, key_of(first), &entry);
        free_track(first);
    }
}

void vgpu_forget_stream(struct vgpu_process *process, cu_stream stream) {
    struct vgpu_entry entry;
    cu_ctx popped;
    vgpu_thread_settle();
    vgpu_forget_contexts();
    vgpu_lock(&process->track_lock);
    bool found = vgpu_table_take(&process->memory, vgpu_stream_key(stream, NULL), &entry);
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
    bool kept = keep(process, track, entry.owner);
    if (!kept)
        vgpu_sample_drop(track);
    vgpu_unlock(&track->timeline->lock);
    vgpu_capture_mode(mode);
    if (pushed)
        VGPU_REAL(cuCtxPopCurrent_v2)(&popped);
    if (!kept)
        free_track(track);
}
