// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_MEM_SPARSE_H
#define VGPU_MEM_SPARSE_H

#include "memory/vmm.h"

// Uncharges what was mapped under arrays that have gone: a list of the objects to which
// their entries of VGPU_SPARSE led.
void vgpu_sparse_end(struct vgpu_process *process, struct vgpu_record *arrays);

#endif
