// SPDX-License-Identifier: Apache-2.0
//
// Streams that have ended before what they launched was through.

#ifndef VGPU_DESTROYED_STREAMS_H
#define VGPU_DESTROYED_STREAMS_H

#include "compute/stream_state.h"
#include "compute/timeshare.h"

// Counts the batches of such streams that are through, of a few streams each time. Under
// the context state's lock, with its context current.
void vgpu_destroyed_collect(struct vgpu_process *process, struct vgpu_ctx_state *ctx_state, const struct vgpu_turn *turn);

// Forgets what was measured on a stream that is about to be destroyed.
void vgpu_forget_stream(struct vgpu_process *process, cu_stream stream);

#endif
