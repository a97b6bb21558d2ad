// SPDX-License-Identifier: Apache-2.0
//
// What NVML's views share.

#ifndef VGPU_NVML_VIEWS_H
#define VGPU_NVML_VIEWS_H

#include "runtime/driver.h"

#include <string.h>

struct vgpu_view;

// What of a device this process may see.
struct vgpu_slice {
    struct vgpu_view *view;
    int device;
    uint64_t total;
};

// Finds the slice of an NVML device. On an error, total is zero.
nv_result vgpu_slice_find(nv_device device, struct vgpu_slice *out);

// Reports whether this is the PID of one of the container's processes that use CUDA.
bool vgpu_slice_has(const struct vgpu_slice *slice, uint32_t pid);

#endif
