// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_LIMITS_H
#define VGPU_LIMITS_H

#include "vgpu_layout.h"

#include <stddef.h>

// Checks the n bytes of a limits file and copies them to *out. Returns NULL, or
// what is wrong with them.
const char *vgpu_limits_parse(const void *bytes, size_t n, struct vgpu_limits *out);

// Reads and checks the file at path. Returns NULL, or what is wrong with it.
const char *vgpu_limits_read(const char *path, struct vgpu_limits *out);

// A device's UUID as NVML writes it.
void vgpu_uuid_text(const uint8_t *uuid, char *text, size_t size);

// Maps the pace file for this many devices. NULL if there is none or it isn't right.
const struct vgpu_pace *vgpu_pace_map(const char *path, uint32_t devices);

#endif
