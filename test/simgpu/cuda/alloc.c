// SPDX-License-Identifier: Apache-2.0
//
// alloc.c: plain, pitched and managed memory; what memory there is.
//
// Invariants:
// - Memory is charged before it has an address and uncharged after it has lost
//   it, rounded up to 512 bytes and never more; what lies in a pool as that says.
// - An address that is none of ours is INVALID_VALUE, never ignored.
#define _GNU_SOURCE
#include "internal.h"

#include <sys/mman.h>

// lost_or tells why a device refused: it fell off the bus, this MPS client failed,
// or what was given.
CUresult lost_or(unsigned dev, CUresult otherwise) {
    uint32_t failed = atomic_load(&me->mps.failed);
    if (failed) return (CUresult)failed;
    return atomic_load(&cu->devices[dev].lost) ? CUDA_ERROR_UNKNOWN : otherwise;
}

CUresult allocate(CUcontext ctx, size_t size, enum block_kind kind, CUmemoryPool pool,
                  CUdeviceptr *at) {
    size_t rounded = va_round(size);
    NEED(at && size && rounded >= size);
    if (kind == BLOCK_MANAGED) rounded = (rounded + 4095) & ~(size_t)4095;
    CHECK(lost_or(ctx->dev, CUDA_SUCCESS));
    bool charged = pool ? pool_take(pool, ctx->dev, rounded) : sim_charge(cu, me, ctx->dev, rounded);
    if (!charged) return CUDA_ERROR_OUT_OF_MEMORY;
    va_lock();
    struct block *b = va_take(rounded, kind == BLOCK_MANAGED ? 4096 : 512);
    if (b) {
        b->kind = kind;
        b->dev = ctx->dev;
        b->ctx = ctx;
        b->pool = pool;
        va_insert(b);
        *at = b->at;
    }
    va_unlock();
    if (b && (kind != BLOCK_MANAGED ||
              mprotect((void *)(uintptr_t)b->at, rounded, PROT_READ | PROT_WRITE) == 0))
        return CUDA_SUCCESS;
    if (b) release(*at);
    else if (pool) pool_freed(pool, ctx->dev, rounded);
    else sim_uncharge(me, ctx->dev, rounded);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult release(CUdeviceptr at) {
    va_lock();
    struct block *b = va_find(at);
    if (!b || b->kind == BLOCK_RESERVED || b->kind == BLOCK_MAPPED ||
        (b->kind == BLOCK_IPC && !b->pool)) {
        va_unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (b->kind == BLOCK_GRAPH) {
        bool ok = graph_memory_free(b);
        va_unlock();
        return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    unsigned dev = b->dev;
    size_t size = b->size;
    CUmemoryPool pool = b->pool;
    unsigned long long id = b->id;
    int hold = b->hold;
    va_remove(b);
    backing_drop(b);
    va_give(b);
    va_unlock();
    if (hold >= 0) { // of another process's pool
        sim_hold_drop(cu, hold);
        return CUDA_SUCCESS;
    }
    if (pool) pool_freed(pool, dev, size);  // its importers have let go before
    else sim_hold_freed(cu, me, id, dev, size);
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    CUcontext ctx;
    NEED(free && total);
    CHECK(need_context(&ctx));
    CHECK(lost_or(ctx->dev, CUDA_SUCCESS));
    sim_takes(cu, SIM_MEM_INFO);
    *total = sim_capacity(cu, ctx->dev, ordinals[ctx->ordinal].gi);
    *free = sim_available(cu, me, ctx->dev);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t size) {
    CUcontext ctx;
    CHECK(need_context(&ctx));
    sim_takes(cu, SIM_MEM_ALLOC);
    return allocate(ctx, size, BLOCK_PLAIN, NULL, at);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height,
                            unsigned int element) {
    CUcontext ctx;
    NEED(at && pitch && width && height && (element == 4 || element == 8 || element == 16));
    CHECK(need_context(&ctx));
    size_t row = va_round(width);
    NEED(height <= SIZE_MAX / row);
    CHECK(allocate(ctx, row * height, BLOCK_PLAIN, NULL, at));
    *pitch = row;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *at, size_t size, unsigned int flags) {
    CUcontext ctx;
    NEED(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST);
    CHECK(need_context(&ctx));
    return allocate(ctx, size, BLOCK_MANAGED, NULL, at);
}

// Freeing waits for the device, as the real call does.
CUresult cuMemFree_v2(CUdeviceptr at) {
    INITIALIZED;
    if (!at) return CUDA_SUCCESS;
    sim_takes(cu, SIM_MEM_ALLOC);
    return release(at);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *size, CUdeviceptr at) {
    CUcontext ctx;
    CHECK(need_context(&ctx));
    va_lock();
    struct block *b = va_around(at);
    if (b && start) *start = b->at;
    if (b && size) *size = b->size;
    va_unlock();
    return b ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr at, size_t size,
                                       CUmemRangeHandleType type, unsigned long long flags) {
    (void)at, (void)size, (void)flags;
    NEED(handle && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
    return CUDA_ERROR_NOT_SUPPORTED;
}
