// SPDX-License-Identifier: Apache-2.0
//
// fatbin.c: the text of a module (module.c) in a fat binary, which is how programs on
// NVIDIA's runtime library carry their modules: entries for several processors, and
// around them, as __cudaRegisterFatBinary takes it, a wrapper. The layout is the one
// that the ZLUDA project (Apache-2.0) has published.
//
// Invariants:
// - The first entry that begins as our text is the module; others are not looked at.
#include "internal.h"

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
    uint32_t bytes, payload;
};

static bool begins(const void *at, uint32_t magic) { return memcmp(at, &magic, sizeof magic) == 0; }

const char *module_text(const void *image) {
    static const char first[] = "simgpu-module 1\n";
    const size_t n = sizeof first - 1;
    if (begins(image, 0x466243b1)) image = ((const struct wrapper *)image)->entries;
    if (image && begins(image, 0xba55ed50)) {
        const struct head *head = image;
        const char *at = (const char *)head + head->bytes, *end = at + head->rest;
        for (image = NULL; !image && at + sizeof(struct entry) + n < end;) {
            const struct entry *entry = (const void *)at;
            if (strncmp(at + entry->bytes, first, n) == 0) image = at + entry->bytes;
            at += entry->bytes + entry->payload;
        }
    }
    return image && strncmp(image, first, n) == 0 ? (const char *)image + n : NULL;
}
