// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_LIMITS_H
#define VGPU_LIMITS_H

#include "runtime/base.h"
#include "vgpu_layout.h"

#include <stddef.h>

// Checks the n bytes of a limits file and copies them to *out. Returns NULL, or
// what is wrong with them.
const char *vgpu_limits_parse(const void *bytes, size_t n, struct vgpu_limits *out);

// Reads and checks the file at path. Returns NULL, or what is wrong with it.
const char *vgpu_limits_read(const char *path, struct vgpu_limits *out);

// A device's UUID as NVML writes it.
void vgpu_uuid_text(const uint8_t *uuid, char *text, size_t size);

// The limits in force on a device while its total in the counters is this word; NULL for no
// pace file. Memory in bytes; percent of the device, 0 for no quota.
static inline uint64_t vgpu_limit_in_force(const struct vgpu_pace *pace, int device, uint64_t total) {
    return vgpu_likely(pace != NULL) ? vgpu_load(&pace->device[device].limit[total >> 63]) : 0;
}
static inline uint64_t vgpu_memory_limit(const struct vgpu_limits *limits, const struct vgpu_pace *pace, int device,
                                         uint64_t total) {
    uint64_t bytes = vgpu_limit_in_force(pace, device, total) & VGPU_BYTES_MASK;
    return bytes != 0 ? bytes : limits->device[device].memory_bytes;
}
// What of vgpu_memory_limit is charged without a wait.
static inline uint64_t vgpu_memory_ready(const struct vgpu_limits *limits, const struct vgpu_pace *pace, int device,
                                         uint64_t total) {
    uint64_t limit = vgpu_memory_limit(limits, pace, device, total);
    uint64_t ready = vgpu_likely(pace != NULL) ? vgpu_load(&pace->device[device].ready_bytes) : 0;
    return vgpu_unlikely(ready != 0 && ready < limit) ? ready : limit;
}
static inline uint32_t vgpu_core_limit(const struct vgpu_limits *limits, const struct vgpu_pace *pace, int device,
                                       uint64_t total) {
    uint32_t percent = VGPU_LIMIT_CORE(vgpu_limit_in_force(pace, device, total));
    return percent != 0 && percent <= 100 ? percent : limits->device[device].core_percent;
}

// Maps the pace file for this many devices. NULL if there is none or it isn't right.
const struct vgpu_pace *vgpu_pace_map(const char *path, uint32_t devices);

#endif
