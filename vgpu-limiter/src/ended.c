// SPDX-License-Identifier: Apache-2.0
//
// A stream may be destroyed while it has work: events outlive it, so its batches, the last
// of which ends with it, are measured when they are through. Launches on streams that end at
// once would otherwise cost nothing for good, as nobody would learn what they take; or what
// the short ones among them take, since only these are through by then.
//
// Invariant: a track is in its timeline's ring as long as it is in the table by its own key,
// and has batches that aren't measured; what frees it is that they are, or its context's end.

#include "ended.h"

#include "memory.h"
#include "sample.h"

#include <stdlib.h>

#define MOST 256 // for whatever keeps the device from them
#define LOOKS 4

// One bit changed, as for timelines: no handle is like that.
static uint64_t key_of(const struct vgpu_track *track) { return vgpu_key(VGPU_STREAM, (uintptr_t)track) ^ 2; }

bool vgpu_ended_keep(struct vgpu_process *process, struct vgpu_track *track, cu_ctx ctx) {
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
        vgpu_track_free(first);
    }
}

void vgpu_track_free(struct vgpu_track *track) {
    for (int i = 0; i <= VGPU_BATCHES; i++) {
        if (track->ring[i].start != NULL)
            VGPU_REAL(cuEventDestroy_v2)(track->ring[i].start);
        if (track->ring[i].end != NULL)
            VGPU_REAL(cuEventDestroy_v2)(track->ring[i].end);
    }
    free(track);
}
