// SPDX-License-Identifier: Apache-2.0
//
// fatbin.c: what kind of image a module is. A fat binary, which is how programs on
// NVIDIA's runtime library carry their modules, has entries for several processors, and
// around them, as __cudaRegisterFatBinary takes it, a wrapper. The layout is the one
// that the ZLUDA project (Apache-2.0) has published.
//
// Invariants:
// - Of a fat binary the first entry in our own text is the module, or else the first
//   that is PTX. Compressed entries are not looked into.
// - A wrapper holds an address: only where a program passes one is it followed.
#define _GNU_SOURCE
#include "image.h"

#include <string.h>

struct wrapper {
    uint32_t magic, version;
    const void *entries;
};

struct head {
    uint32_t magic;
    uint16_t version, bytes;
    uint64_t rest;
};

struct entry {
    uint16_t kind, version;
    uint32_t bytes;
    uint64_t payload;
};

static const char our_first[] = "simgpu-module 1\n";

// begins reads no further than the first byte that differs: no magic has a zero byte.
static bool begins(const void *at, size_t size, uint32_t magic) {
    char bytes[sizeof magic + 1] = {0};
    memcpy(bytes, &magic, sizeof magic);
    return size >= sizeof magic && strncmp(at, bytes, sizeof magic) == 0;
}

static bool text_begins(struct image *found, const char *text, size_t size) {
    size_t n = sizeof our_first - 1;
    bool ours = size >= n && memcmp(text, our_first, n) == 0;
    *found = ours ? (struct image){text + n, size - n, false} : (struct image){text, size, true};
    return ours || ptx_begins(text, size);
}

// A fat binary's entries lie behind each other up to its end.
static CUresult entry_find(struct image *found, const char *image, size_t size) {
    struct head head;
    struct image ptx = {0}, one;
    if (size < sizeof head) return CUDA_ERROR_INVALID_IMAGE;
    memcpy(&head, image, sizeof head);
    if (head.bytes < sizeof head || head.bytes > size || head.rest > size - head.bytes) return CUDA_ERROR_INVALID_IMAGE;
    const char *at = image + head.bytes;
    for (size_t left = head.rest; left;) {
        struct entry entry;
        if (left < sizeof entry) return CUDA_ERROR_INVALID_IMAGE;
        memcpy(&entry, at, sizeof entry);
        if (entry.bytes < sizeof entry || entry.bytes > left || entry.payload > left - entry.bytes)
            return CUDA_ERROR_INVALID_IMAGE;
        const char *text = at + entry.bytes;
        if (text_begins(&one, text, strnlen(text, entry.payload)) && (!one.ptx || !ptx.text)) {
            ptx = one;
            if (!one.ptx) break;
        }
        at = text + entry.payload;
        left -= entry.bytes + entry.payload;
    }
    *found = ptx;
    return ptx.text ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult image_find(struct image *found, const void *image, size_t size) {
    if (size == SIZE_MAX && begins(image, size, 0x466243b1)) {
        image = ((const struct wrapper *)image)->entries;
        if (!image) return CUDA_ERROR_INVALID_IMAGE;
    }
    // The size of one that is in the program's memory is what its header says.
    if (begins(image, size, 0xba55ed50)) return entry_find(found, image, size == SIZE_MAX ? SIZE_MAX / 2 : size);
    if (begins(image, size, 0x464c457f)) return CUDA_ERROR_NO_BINARY_FOR_GPU;  // ELF
    size = size == SIZE_MAX ? strlen(image) : strnlen(image, size);
    return text_begins(found, image, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}
