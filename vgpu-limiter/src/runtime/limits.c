// SPDX-License-Identifier: Apache-2.0
//
// Reads the limits file, and maps the pace file.
//
// Invariant: the whole limits file is right, or none of it is used. The rules are those
// of DecodeLimits in vgpu-limiter/layout; a test feeds both the same files.

#include "runtime/limits.h"

#include "runtime/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t checksum(const struct vgpu_limits *limits) {
    struct vgpu_limits copy = *limits;
    copy.checksum = 0;
    return vgpu_hash(VGPU_HASH_START, &copy, sizeof copy);
}

static const char *check_device(const struct vgpu_limits *limits, uint32_t i) {
    const struct vgpu_limits_device *device = &limits->device[i];
    if (device->memory_bytes == 0 || device->memory_bytes > VGPU_BYTES_MASK)
        return "memory limit out of range";
    if (device->core_percent > 100 || device->flags > VGPU_IDLE || (device->flags == VGPU_IDLE && device->core_percent != 0) ||
        device->burst_percent > 100 || (device->burst_percent != 0 && device->flags != VGPU_MAY_BURST))
        return "core limit or flags out of range";
    for (uint32_t j = 0; j < i; j++)
        if (memcmp(limits->device[j].uuid, device->uuid, VGPU_UUID_BYTES) == 0)
            return "a device is listed twice";
    return NULL;
}

const char *vgpu_limits_parse(const void *bytes, size_t n, struct vgpu_limits *out) {
    struct vgpu_limits limits;
    if (n != sizeof limits)
        return "wrong size";
    memcpy(&limits, bytes, sizeof limits);
    if (limits.magic != VGPU_LIMITS_MAGIC)
        return "not a limits file";
    if (limits.version != VGPU_LIMITS_VERSION)
        return "written for another release";
    if (limits.size != sizeof limits || limits.checksum != checksum(&limits))
        return "damaged";
    if (limits.device_count == 0 || limits.device_count > VGPU_MAX_DEVICES || limits.reserved != 0)
        return "wrong number of devices";
    if (memchr(limits.container, 0, sizeof limits.container) == NULL)
        return "container identity is not terminated";
    for (uint32_t i = 0; i < limits.device_count; i++) {
        const char *wrong = check_device(&limits, i);
        if (wrong != NULL)
            return wrong;
    }
    *out = limits;
    return NULL;
}

const char *vgpu_limits_read(const char *path, struct vgpu_limits *out) {
    unsigned char bytes[sizeof(struct vgpu_limits) + 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return strerror(errno);
    size_t have = 0;
    const char *wrong = NULL;
    for (;;) {
        ssize_t n = read(fd, bytes + have, sizeof bytes - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            wrong = strerror(errno);
        if (n <= 0)
            break;
        have += (size_t)n;
    }
    close(fd);
    if (wrong != NULL)
        return wrong;
    return vgpu_limits_parse(bytes, have, out);
}

#define HEX4(b) (b)[0], (b)[1], (b)[2], (b)[3]

void vgpu_uuid_text(const uint8_t *uuid, char *text, size_t size) {
    snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", HEX4(uuid),
             HEX4(uuid + 4), HEX4(uuid + 8), HEX4(uuid + 12));
}

const struct vgpu_pace *vgpu_pace_map(const char *path, uint32_t devices) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    const struct vgpu_pace *pace = MAP_FAILED;
    if (lseek(fd, 0, SEEK_END) == (off_t)sizeof *pace)
        pace = mmap(NULL, sizeof *pace, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (pace == MAP_FAILED)
        return NULL;
    if (pace->magic == VGPU_PACE_MAGIC && pace->version == VGPU_PACE_VERSION &&
        pace->size == sizeof *pace && pace->device_count == devices)
        return pace;
    munmap((void *)(uintptr_t)pace, sizeof *pace);
    return NULL;
}
