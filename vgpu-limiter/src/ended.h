// SPDX-License-Identifier: Apache-2.0
//
// Streams that have ended before what they launched was through.

#ifndef VGPU_ENDED_H
#define VGPU_ENDED_H

#include "track.h"

// Both under the timeline's lock, with its context current.

// Keeps the track of a stream that ends and is in the table no more, until its batches are
// measured. False: there are none, or too many such streams, or there is no memory.
bool vgpu_ended_keep(struct vgpu_process *process, struct vgpu_track *track, cu_ctx ctx);

// Counts the batches of such streams that are through, of a few streams each time.
void vgpu_ended_collect(struct vgpu_process *process, struct vgpu_timeline *timeline);

// Frees a track with its events.
void vgpu_track_free(struct vgpu_track *track);

#endif
