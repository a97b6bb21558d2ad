// SPDX-License-Identifier: Apache-2.0
//
// The container's device time on one device, shared by its processes.

#ifndef VGPU_BUCKET_H
#define VGPU_BUCKET_H

#include "process.h"

// How far ahead of the clock a container may be: what it can use at once after a
// pause, and how late a correction may come.
#define VGPU_BURST_NS UINT64_C(10000000)

uint64_t vgpu_now(void);

// Waits until the bucket allows a launch. Returns the time now.
uint64_t vgpu_bucket_wait(struct vgpu_process *process, int device);

// Charges device time as it is expected, then the difference to what was
// measured, which may be negative.
void vgpu_bucket_charge(struct vgpu_process *process, int device, uint64_t now, uint64_t ns);
void vgpu_bucket_correct(struct vgpu_process *process, int device, int64_t ns);

#endif
