// SPDX-License-Identifier: Apache-2.0
//
// Streams that have ended before what they launched was through.

#ifndef VGPU_ENDED_H
#define VGPU_ENDED_H

#include "compute/stream_state.h"

// Counts the batches of such streams that are through, of a few streams each time. Under
// the timeline's lock, with its context current.
void vgpu_ended_collect(struct vgpu_process *process, struct vgpu_timeline *timeline);

// Forgets what was measured on a stream that is about to be destroyed.
void vgpu_forget_stream(struct vgpu_process *process, cu_stream stream);

#endif
