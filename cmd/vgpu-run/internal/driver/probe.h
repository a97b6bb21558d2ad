// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_PROBE_H
#define VGPU_PROBE_H

#include <stddef.h>
#include <stdint.h>

#define VGPU_PROBE_DEVICES 64

struct vgpu_probe_device {
    uint8_t uuid[16];
    uint64_t memory; // bytes
};

// Fills devices, at most VGPU_PROBE_DEVICES, in the order of CUDA's indices.
// Returns their number, or -1 with the reason, NUL-terminated, in text.
int vgpu_probe(struct vgpu_probe_device *devices, char *text, size_t text_bytes);

#endif
