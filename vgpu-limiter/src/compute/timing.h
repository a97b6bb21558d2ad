// SPDX-License-Identifier: Apache-2.0
//
// Measuring batches of launches with events.

#ifndef VGPU_TIMING_H
#define VGPU_TIMING_H

#include "compute/stream_state.h"
#include "compute/timeshare.h"

// All under the context state's lock, with the stream's context current. `turn` is the
// caller's, as it was sampled.

// Begins and ends a batch on the stream. per_thread: as in hooks.def. False: there is no
// memory for its events, or to record the first.
bool vgpu_timing_begin(struct vgpu_stream_state *state, cu_stream stream, bool per_thread, const struct vgpu_turn *turn,
                       uint64_t now);
void vgpu_timing_end(struct vgpu_stream_state *state, cu_stream stream, bool per_thread, uint64_t now);

// Adds launches that take so much together to the open batch, if there is one, and
// charges them.
void vgpu_timing_add(struct vgpu_stream_state *state, uint64_t key, uint64_t launches,
                     struct vgpu_price price, const struct vgpu_turn *turn, uint64_t now);

// Counts the batches that are through.
void vgpu_timing_collect(struct vgpu_stream_state *state, const struct vgpu_turn *turn);

// Charges a batch that is one of the first of its class for as long as it has taken
// so far, if it has begun: nobody waits for it any longer.
void vgpu_timing_overdue(struct vgpu_ctx_state *ctx_state, const struct vgpu_turn *turn, uint64_t now);

// Forgets the batches that aren't measured yet, or the open one: they stay charged as
// expected.
void vgpu_timing_drop(struct vgpu_stream_state *state);
void vgpu_timing_drop_open(struct vgpu_stream_state *state);

#endif
