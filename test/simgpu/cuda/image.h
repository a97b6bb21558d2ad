// SPDX-License-Identifier: Apache-2.0
//
// image.h: the image of a module: a text of our own (module.c) or PTX, alone or in a
// fat binary.
//
// Invariant: nothing beyond an image's size is read; one of unknown size ends with a
// zero byte, a fat binary where its header says.
#ifndef VERNIER_SIMGPU_CUDA_IMAGE_H
#define VERNIER_SIMGPU_CUDA_IMAGE_H

#include "cuda/results.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct image {
    const char *text;  // behind the first line of our own; not terminated
    size_t size;
    bool ptx;
};

// fatbin.c: the module in an image, whose size is SIZE_MAX if unknown.
CUresult image_find(struct image *found, const void *image, size_t size);

// ptx.c: what a PTX text defines, in its order. A visit that fails ends the reading.
struct ptx_kernel {
    const char *name;
    size_t name_size;
    uint32_t sizes[1024];  // of the parameters, in bytes
    uint32_t offsets[1024];
    unsigned count;
};
struct ptx_global {
    const char *name;
    size_t name_size, size;
    bool managed;
};
struct ptx_visitor {
    void *to;
    CUresult (*kernel)(void *to, const struct ptx_kernel *k);
    CUresult (*global)(void *to, const struct ptx_global *g);
    CUresult (*comment)(void *to, const char *text, size_t size);  // behind "// simgpu: "
};
// The line of an error is told in *line.
CUresult ptx_read(const char *text, size_t size, const struct ptx_visitor *v, unsigned *line);
bool ptx_begins(const char *text, size_t size);

#endif
