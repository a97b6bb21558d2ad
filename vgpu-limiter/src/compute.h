// SPDX-License-Identifier: Apache-2.0
//
// Device time: measured with events around launches, paid into one bucket per
// container and device.

#ifndef VGPU_COMPUTE_H
#define VGPU_COMPUTE_H

#include "process.h"

enum vgpu_work { VGPU_KERNEL, VGPU_GRAPH };

// One launch that is limited. Filled by vgpu_launch_begin.
struct vgpu_launch {
    struct vgpu_track *track; // NULL: not measured
    uint64_t now;
    cu_stream stream;
    cu_ctx context; // the stream's, where that isn't the current one
    bool per_thread;
    int capture_mode;
};

// Whether launches of this process are limited at all: the hot path's only
// question where they aren't.
static inline bool vgpu_launch_limited(void) {
    struct vgpu_process *process = atomic_load_explicit(&vgpu_process_page, memory_order_acquire);
    return vgpu_unlikely(process != NULL && process->has_quota);
}

// Waits until the container's bucket allows a launch, and prepares to measure
// it. A launch that a stream capture will record is neither.
void vgpu_launch_begin(struct vgpu_launch *launch, enum vgpu_work work, cu_stream stream,
                       bool per_thread);
void vgpu_launch_end(struct vgpu_launch *launch, cu_result result);

// Forgets what was measured on a stream that is about to be destroyed.
void vgpu_forget_stream(struct vgpu_process *process, cu_stream stream);

// Frees what a table entry of class VGPU_STREAM refers to, when its context and
// so its events are gone.
void vgpu_drop_track(uint64_t value);

#endif
