// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_MEM_SPARSE_H
#define VGPU_MEM_SPARSE_H

#include "runtime/process.h"

// Destroys an array and ends what is mapped under it, and what goes with a context
// that the driver has destroyed. Its handle may be another's by then: before, what is
// its own is given to an owner that no context has (mem_sparse.c).
void vgpu_sparse_begin(struct vgpu_process *process, void *array); // it has been created
cu_result vgpu_sparse_destroy(struct vgpu_process *process, void *array, cu_result (*destroy)(void *));
void vgpu_sparse_give(struct vgpu_process *process, cu_ctx from, cu_ctx to);
void vgpu_sparse_forget(struct vgpu_process *process, cu_ctx ctx);

#endif
