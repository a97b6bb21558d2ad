// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_OWN_MEMORY_H
#define VGPU_OWN_MEMORY_H

#include "runtime/process.h"

// The device memory of this process as NVML knows it. False where NVML is not there
// or doesn't say which process this is.
bool vgpu_own_memory(struct vgpu_process *process, int device, uint64_t *bytes);

// Reports whether NVML is there and has the device.
bool vgpu_can_measure(struct vgpu_process *process, int device);

// Notes who uses the device before this process does.
void vgpu_own_memory_begin(struct vgpu_process *process, int device);

// Reports whether NVML knows this process by another number than its own.
bool vgpu_has_host_number(struct vgpu_process *process);

#endif
