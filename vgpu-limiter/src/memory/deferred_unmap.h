// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_DEFERRED_UNMAP_H
#define VGPU_DEFERRED_UNMAP_H

#include "memory/vmm.h"

// Memory that the driver unmaps later: mappings of records are added to a list, which ends
// when the stream has come so far, or at once.
void vgpu_deferred_add(struct vgpu_deferred_unmap **list, struct vgpu_record *record);
void vgpu_deferred_until(struct vgpu_process *process, struct vgpu_deferred_unmap *list, bool per_thread,
                       cu_stream stream);
void vgpu_deferred_end(struct vgpu_process *process, struct vgpu_deferred_unmap *list);
void vgpu_deferred_give(struct vgpu_process *process, cu_ctx from, cu_ctx to);
void vgpu_deferred_forget(struct vgpu_process *process, cu_ctx ctx);

#endif
