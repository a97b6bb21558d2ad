// SPDX-License-Identifier: Apache-2.0
//
// Finding tracks and timelines in the process's table.

#include "compute/stream_state.h"

#include "memory/memory.h"

#include <stdlib.h>

#define STREAMS 64 // of so many
#define MEASURED_STREAMS 16

uint64_t vgpu_stream_key(cu_stream stream, cu_ctx ctx) {
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

struct vgpu_track *vgpu_stream_find(struct vgpu_process *process, cu_stream stream,
                                     const struct vgpu_here *here) {
    struct vgpu_entry entry, old;
    uint64_t key = vgpu_stream_key(stream, here->ctx);
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
