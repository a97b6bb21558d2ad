// SPDX-License-Identifier: Apache-2.0
//
// Measuring batches of launches with events.

#ifndef VGPU_SAMPLE_H
#define VGPU_SAMPLE_H

#include "track.h"

// All under the timeline's lock, with the stream's context current.

static inline struct vgpu_batch *vgpu_batch_open(struct vgpu_track *track) {
    return &track->ring[(track->first + track->pending) % (VGPU_BATCHES + 1)];
}

// Begins and ends a batch on the stream. per_thread: as in hooks.def.
void vgpu_sample_begin(struct vgpu_track *track, cu_stream stream, bool per_thread, uint64_t now);
void vgpu_sample_end(struct vgpu_track *track, cu_stream stream, bool per_thread, uint64_t now);

// Adds launches to the open batch, if there is one, and charges them.
void vgpu_sample_add(struct vgpu_track *track, uint64_t key, uint64_t launches, uint64_t ns,
                     uint64_t now);

// Counts the batches that are through.
void vgpu_sample_collect(struct vgpu_track *track);

// Waits, without the lock, until the oldest batch is through, and counts it.
void vgpu_sample_wait(struct vgpu_track *track);

#endif
