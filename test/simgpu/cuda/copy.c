// SPDX-License-Identifier: Apache-2.0
//
// copy.c: copies and fills of linear memory.
//
// Invariants:
// - An address in the device range that belongs to no block is INVALID_VALUE;
//   any other address is taken for host memory.
// - The bytes are there when the call returns, also of an asynchronous one. Its
//   device time, 10 ns per KiB whichever way, comes in the order of its stream; a
//   call that isn't asynchronous returns after it.
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>

#define PIECE 65536u

// device_range reports whether all of [at, at + n) is memory: one allocation, or
// mappings side by side.
static bool device_range(CUdeviceptr at, size_t n) {
    CUdeviceptr end = at + n;
    bool ok = end >= at;
    va_lock();
    while (ok && at < end) {
        struct block *b = va_around(at);
        ok = b && b->kind != BLOCK_RESERVED && (b->kind == BLOCK_MAPPED || end <= b->at + b->size);
        if (ok) at = b->at + b->size;
    }
    va_unlock();
    return ok;
}

CUresult copy_bytes(CUdeviceptr to, CUdeviceptr from, size_t n) {
    CUcontext ctx;
    unsigned char piece[PIECE];
    bool into = va_contains(to), out = va_contains(from);
    CHECK(need_context(&ctx));
    CHECK(lost_or(ctx->dev, CUDA_SUCCESS));
    if (!n) return CUDA_SUCCESS;
    NEED(to && from);
    if ((into && !device_range(to, n)) || (out && !device_range(from, n)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!into && !out) {
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, n);
    } else if (!into) {
        backing_read((void *)(uintptr_t)to, from, n);
    } else if (!out) {
        backing_write(to, (const void *)(uintptr_t)from, n);
    } else {
        for (size_t at = 0; at < n; at += PIECE) {
            size_t part = n - at < PIECE ? n - at : PIECE;
            backing_read(piece, from + at, part);
            backing_write(to + at, piece, part);
        }
    }
    return CUDA_SUCCESS;
}

CUresult copy_time(CUstream h, size_t n, bool wait) {
    CUstream s;
    CHECK(context_stream(h, &s));
    CHECK(stream_add(s, n / 1024 * 10));
    return wait && n >= 1024 ? stream_wait(s) : CUDA_SUCCESS;
}

// copy_now tells of an asynchronous call whether it happens now; in a capture it
// becomes a node instead.
CUresult copy_now(CUstream h, CUgraphNodeType type, bool *now) {
    CUstream s;
    CHECK(context_stream(h, &s));
    *now = !s->capture;
    return s->capture ? graph_capture(s->capture, type, 0) : CUDA_SUCCESS;
}

#define HOST(p) ((CUdeviceptr)(uintptr_t)(p))

static CUresult from_host(CUdeviceptr to, const void *from, size_t n) {
    if (n && !va_contains(to)) return CUDA_ERROR_INVALID_VALUE;
    return copy_bytes(to, HOST(from), n);
}

static CUresult to_host(void *to, CUdeviceptr from, size_t n) {
    if (n && !va_contains(from)) return CUDA_ERROR_INVALID_VALUE;
    return copy_bytes(HOST(to), from, n);
}

static CUresult on_device(CUdeviceptr to, CUdeviceptr from, size_t n) {
    if (n && (!va_contains(to) || !va_contains(from))) return CUDA_ERROR_INVALID_VALUE;
    return copy_bytes(to, from, n);
}

static CUresult to_peer(CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx,
                        size_t n) {
    if (!to_ctx || !from_ctx) return CUDA_ERROR_INVALID_CONTEXT;
    return on_device(to, from, n);
}

// A copy that has happened when the call returns, and the same in a stream's order.
#define COPY(name, v, copy, ...)                                       \
    CUresult name##v(__VA_ARGS__, size_t n) { NOW(n, copy); }          \
    CUresult name##Async##v(__VA_ARGS__, size_t n, CUstream stream) {  \
        LATER(stream, CU_GRAPH_NODE_TYPE_MEMCPY, n, copy);             \
    }                                                                  \
    PTDS(name##v);                                                     \
    PTSZ(name##Async##v)

COPY(cuMemcpy, , copy_bytes(to, from, n), CUdeviceptr to, CUdeviceptr from);
COPY(cuMemcpyHtoD, _v2, from_host(to, from, n), CUdeviceptr to, const void *from);
COPY(cuMemcpyDtoH, _v2, to_host(to, from, n), void *to, CUdeviceptr from);
COPY(cuMemcpyDtoD, _v2, on_device(to, from, n), CUdeviceptr to, CUdeviceptr from);
COPY(cuMemcpyPeer, , to_peer(to, to_ctx, from, from_ctx, n),
     CUdeviceptr to, CUcontext to_ctx, CUdeviceptr from, CUcontext from_ctx);

// fill writes height rows of width elements of size bytes each.
CUresult fill_bytes(CUdeviceptr to, size_t pitch, unsigned value, unsigned size, size_t width,
                    size_t height) {
    CUcontext ctx;
    unsigned char piece[PIECE];
    CHECK(need_context(&ctx));
    CHECK(lost_or(ctx->dev, CUDA_SUCCESS));
    size_t row = width * size;
    if (!row || !height) return CUDA_SUCCESS;
    NEED(to % size == 0 && width <= SIZE_MAX / size && (height == 1 || pitch >= row));
    if (!va_contains(to) || !device_range(to, pitch * (height - 1) + row))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < PIECE; i += size) memcpy(piece + i, &value, size);
    for (size_t y = 0; y < height; y++)
        for (size_t at = 0; at < row; at += PIECE)
            backing_write(to + y * pitch + at, piece, row - at < PIECE ? row - at : PIECE);
    return CUDA_SUCCESS;
}

#define FILL(bits, type)                                                                        \
    CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t n) {                       \
        NOW(n * sizeof value, fill_bytes(to, 0, value, sizeof value, n, 1));                    \
    }                                                                                           \
    CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width,     \
                                    size_t height) {                                            \
        NOW(width * height * sizeof value,                                                      \
            fill_bytes(to, pitch, value, sizeof value, width, height));                         \
    }                                                                                           \
    CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t n, CUstream stream) {    \
        LATER(stream, CU_GRAPH_NODE_TYPE_MEMSET, n * sizeof value,                              \
              fill_bytes(to, 0, value, sizeof value, n, 1));                                    \
    }                                                                                           \
    CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width,   \
                                      size_t height, CUstream stream) {                         \
        LATER(stream, CU_GRAPH_NODE_TYPE_MEMSET, width * height * sizeof value,                 \
              fill_bytes(to, pitch, value, sizeof value, width, height));                       \
    }                                                                                           \
    PTDS(cuMemsetD##bits##_v2);                                                                 \
    PTDS(cuMemsetD2D##bits##_v2);                                                               \
    PTSZ(cuMemsetD##bits##Async);                                                               \
    PTSZ(cuMemsetD2D##bits##Async)

FILL(8, unsigned char);
FILL(16, unsigned short);
FILL(32, unsigned int);

// PyTorch does not allocate where the driver has none of it.
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, cuuint32_t value,
                                 unsigned int flags) {
    NEED(flags <= 1);
    LATER(stream, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, sizeof value,
          fill_bytes(at, 0, value, sizeof value, 1, 1));
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags) {
    return cuStreamWriteValue32_v2(stream, at, value, flags);
}
PTSZ(cuStreamWriteValue32);
PTSZ(cuStreamWriteValue32_v2);
