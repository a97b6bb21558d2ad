// SPDX-License-Identifier: Apache-2.0
//
// copy3d.c: rectangular copies.
//
// Invariant: a rectangle is copied row by row by the linear copies, and so
// obeys their rules; rows of arrays are forgotten or zero (array.c).
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>

// One end of a copy: a row's address follows from its place.
struct side {
    CUmemorytype type;
    CUdeviceptr base;
    CUarray array;
    size_t pitch, height, x, y, z;
};

static CUdeviceptr row_of(const struct side *s, size_t y, size_t z) {
    return s->base + ((s->z + z) * s->height + s->y + y) * s->pitch + s->x;
}

static CUresult check(struct side *s, size_t width, size_t height, size_t depth) {
    CUDA_ARRAY3D_DESCRIPTOR d;
    switch (s->type) {
        case CU_MEMORYTYPE_ARRAY: return cuArray3DGetDescriptor_v2(&d, s->array);
        case CU_MEMORYTYPE_HOST:
        case CU_MEMORYTYPE_DEVICE:
        case CU_MEMORYTYPE_UNIFIED:
            if (!s->pitch) s->pitch = width;
            if (!s->height) s->height = height;
            NEED(s->base && (height * depth == 1 || s->pitch >= width));
            return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult rectangle(struct side to, struct side from, size_t width, size_t height,
                          size_t depth) {
    CUcontext ctx;
    CHECK(need_context(&ctx));
    if (!width || !height || !depth) return CUDA_SUCCESS;
    CHECK(check(&to, width, height, depth));
    CHECK(check(&from, width, height, depth));
    if (to.type == CU_MEMORYTYPE_ARRAY) return CUDA_SUCCESS;
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++) {
            CUdeviceptr at = row_of(&to, y, z);
            if (from.type != CU_MEMORYTYPE_ARRAY)
                CHECK(copy_bytes(at, row_of(&from, y, z), width));
            else if (va_contains(at))
                CHECK(fill_bytes(at, 0, 0, 1, width, 1));
            else
                memset((void *)(uintptr_t)at, 0, width);
        }
    return CUDA_SUCCESS;
}

#define BASE(c, end)                                                                   \
    ((c)->end##MemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)(c)->end##Host \
                                                : (c)->end##Device)
#define SIDE2(c, end)                                                                         \
    ((struct side){.type = (c)->end##MemoryType, .base = BASE(c, end), .array = (c)->end##Array, \
                   .pitch = (c)->end##Pitch, .x = (c)->end##XInBytes, .y = (c)->end##Y})
#define SIDE3(c, end)                                                                         \
    ((struct side){.type = (c)->end##MemoryType, .base = BASE(c, end), .array = (c)->end##Array, \
                   .pitch = (c)->end##Pitch, .height = (c)->end##Height,                      \
                   .x = (c)->end##XInBytes, .y = (c)->end##Y, .z = (c)->end##Z})

static CUresult flat(const CUDA_MEMCPY2D *c) {
    return rectangle(SIDE2(c, dst), SIDE2(c, src), c->WidthInBytes, c->Height, 1);
}

static CUresult solid(const CUDA_MEMCPY3D *c) {
    return rectangle(SIDE3(c, dst), SIDE3(c, src), c->WidthInBytes, c->Height, c->Depth);
}

static CUresult solid_peer(const CUDA_MEMCPY3D_PEER *c) {
    return rectangle(SIDE3(c, dst), SIDE3(c, src), c->WidthInBytes, c->Height, c->Depth);
}

#define COPY(name, v, type, bytes, copy)                                \
    CUresult name##v(const type *c) {                                   \
        NEED(c);                                                        \
        NOW(bytes, copy(c));                                            \
    }                                                                   \
    CUresult name##Async##v(const type *c, CUstream stream) {           \
        NEED(c);                                                        \
        LATER(stream, CU_GRAPH_NODE_TYPE_MEMCPY, bytes, copy(c));       \
    }                                                                   \
    PTDS(name##v);                                                      \
    PTSZ(name##Async##v)

COPY(cuMemcpy2D, _v2, CUDA_MEMCPY2D, c->WidthInBytes * c->Height, flat);
COPY(cuMemcpy3D, _v2, CUDA_MEMCPY3D, c->WidthInBytes * c->Height * c->Depth, solid);
COPY(cuMemcpy3DPeer, , CUDA_MEMCPY3D_PEER, c->WidthInBytes * c->Height * c->Depth, solid_peer);

// No alias: what is at the address has one name.
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *c) { return cuMemcpy2D_v2(c); }
PTDS(cuMemcpy2DUnaligned_v2);
