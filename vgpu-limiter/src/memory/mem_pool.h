// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_MEM_POOL_H
#define VGPU_MEM_POOL_H

#include "runtime/process.h"

// The driver's functions for one kind of default stream.
struct vgpu_forms {
    enum vgpu_hook alloc, alloc_from, free, synchronize, is_capturing, launch, upload;
};
extern const struct vgpu_forms vgpu_legacy, vgpu_per_thread;

// Whether work for the stream is being captured into a graph.
bool vgpu_is_capturing(const struct vgpu_process *process, const struct vgpu_forms *forms,
                       cu_stream stream);

// Waits for the stream, unless it is capturing.
void vgpu_stream_wait(const struct vgpu_process *process, const struct vgpu_forms *forms,
                      cu_stream stream);

#endif
