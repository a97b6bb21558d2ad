// SPDX-License-Identifier: Apache-2.0
//
// Measuring batches of launches with events.

#ifndef VGPU_SAMPLE_H
#define VGPU_SAMPLE_H

#include "compute/stream_state.h"

// All under the timeline's lock, with the stream's context current.

// Begins and ends a batch on the stream. per_thread: as in hooks.def. False: there is no
// memory for its events, or to record the first.
bool vgpu_sample_begin(struct vgpu_track *track, cu_stream stream, bool per_thread, uint64_t now);
void vgpu_sample_end(struct vgpu_track *track, cu_stream stream, bool per_thread, uint64_t now);

// Adds launches that take so much together to the open batch, if there is one, and
// charges them.
void vgpu_sample_add(struct vgpu_track *track, uint64_t key, uint64_t launches,
                     struct vgpu_price price, uint64_t now);

// Counts the batches that are through.
void vgpu_sample_collect(struct vgpu_track *track);

// Charges a batch that is one of the first of its kind for as long as it has taken
// so far, if it has begun: nobody waits for it any longer.
void vgpu_sample_overdue(struct vgpu_timeline *timeline, uint64_t now);

// Forgets the batches that aren't measured yet, or the open one: they stay charged as
// expected.
void vgpu_sample_drop(struct vgpu_track *track);
void vgpu_sample_drop_open(struct vgpu_track *track);

#endif
