// SPDX-License-Identifier: Apache-2.0
//
// pool.c: stream-ordered memory.
//
// Invariants:
// - A pool is charged what it has reserved: the most it has had in use since it
//   last gave something back. What is freed, at the call that frees it, stays
//   reserved up to the release threshold, until the pool is trimmed or destroyed.
// - Every device has one default pool, which is never destroyed. A destroyed
//   pool lives on until its last allocation is freed.
// - A pool that was imported is a name for what its owner shares (ipc.c).
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <string.h>

struct CUmemPoolHandle_st {
    int ordinal;
    bool standard, doomed, imported;
    cuuint64_t threshold, high;
    cuuint64_t used, reserved, reserved_high;  // with the mutex held
    size_t max_size;
    int reuse[4];
};

static struct CUmemPoolHandle_st standard[SIM_MAX_DEVICES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

// shrink gives back what is reserved beyond keep and not in use.
static void shrink(CUmemoryPool p, cuuint64_t keep) {
    if (keep < p->used) keep = p->used;
    if (p->reserved <= keep) return;
    sim_uncharge(me, ordinals[p->ordinal].dev, p->reserved - keep);
    p->reserved = keep;
}

bool pool_take(CUmemoryPool p, unsigned dev, size_t size) {
    pthread_mutex_lock(&mutex);
    bool ok = p->used + size <= p->reserved || sim_charge(cu, me, dev, p->used + size - p->reserved);
    if (ok) {
        p->used += size;
        if (p->reserved < p->used) p->reserved = p->used;
        if (p->high < p->used) p->high = p->used;
        if (p->reserved_high < p->reserved) p->reserved_high = p->reserved;
    }
    pthread_mutex_unlock(&mutex);
    return ok;
}

void pool_freed(CUmemoryPool p, unsigned dev, size_t size) {
    (void)dev;
    pthread_mutex_lock(&mutex);
    p->used -= size;
    shrink(p, p->doomed ? 0 : p->threshold);
    bool last = p->doomed && !p->used;
    pthread_mutex_unlock(&mutex);
    if (last) free(p);
}

static void prepare(CUmemoryPool p, int ordinal) {
    p->ordinal = ordinal;
    p->reuse[1] = p->reuse[2] = p->reuse[3] = 1;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev) {
    struct ordinal *o;
    NEED(pool);
    CHECK(need_device(dev, &o));
    if (!standard[dev].standard) {
        prepare(&standard[dev], dev);
        standard[dev].standard = true;
    }
    *pool = &standard[dev];
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev) {
    return cuDeviceGetDefaultMemPool(pool, dev);  // no other can be chosen
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *at, CUmemAllocationType type) {
    NEED(pool && at && type == CU_MEM_ALLOCATION_TYPE_PINNED);
    if (at->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    return cuDeviceGetDefaultMemPool(pool, at->id);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *at, CUmemAllocationType type) {
    NEED(pool && at && type == CU_MEM_ALLOCATION_TYPE_PINNED);
    if (at->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    return cuDeviceGetMemPool(pool, at->id);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    struct ordinal *o;
    NEED(pool && props && props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED);
    INITIALIZED;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    CHECK(need_device(props->location.id, &o));
    CUmemoryPool p = calloc(1, sizeof *p);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    prepare(p, props->location.id);
    p->max_size = props->maxSize;
    *pool = p;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    NEED(pool && !pool->standard);
    INITIALIZED;
    pthread_mutex_lock(&mutex);
    pool->doomed = true;
    shrink(pool, 0);
    bool last = !pool->used;
    pthread_mutex_unlock(&mutex);
    if (last) free(pool);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    NEED(pool);
    INITIALIZED;
    pthread_mutex_lock(&mutex);
    shrink(pool, keep);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    NEED(pool && value);
    INITIALIZED;
    switch (attr) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            pool->reuse[attr] = *(int *)value;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            pool->threshold = *(cuuint64_t *)value;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
            NEED(*(cuuint64_t *)value == 0);  // by the API it can only be reset
            pool->reserved_high = pool->reserved;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            NEED(*(cuuint64_t *)value == 0);
            pool->high = pool->used;
            return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static cuuint64_t reserved(CUmemoryPool pool) {
    pthread_mutex_lock(&mutex);
    cuuint64_t bytes = pool->reserved;
    pthread_mutex_unlock(&mutex);
    return bytes;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value) {
    NEED(pool && value);
    INITIALIZED;
    switch (attr) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            *(int *)value = pool->reuse[attr];
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(cuuint64_t *)value = pool->threshold; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(cuuint64_t *)value = reserved(pool); break;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(cuuint64_t *)value = pool->used; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(cuuint64_t *)value = pool->reserved_high; break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(cuuint64_t *)value = pool->high; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *at, size_t size, CUmemoryPool pool,
                                 CUstream stream) {
    CUstream s;
    NEED(at && pool && !pool->doomed && !pool->imported);
    CHECK(context_stream(stream, &s));
    if (s->capture) return graph_capture_alloc(s->capture, pool->ordinal, size, at);
    sim_takes(cu, SIM_MEM_ASYNC);
    size_t rounded = va_round(size);
    if (pool->max_size && pool->used + rounded > pool->max_size)
        return CUDA_ERROR_OUT_OF_MEMORY;
    // The pool's device is charged, whatever context is current.
    struct CUctx_st owner = {.ordinal = pool->ordinal, .dev = ordinals[pool->ordinal].dev};
    CUdeviceptr got;
    CHECK(allocate(&owner, size, BLOCK_POOL, pool, &got));
    va_lock();
    va_find(got)->ctx = pool->ordinal == s->ctx->ordinal ? s->ctx : NULL;
    va_unlock();
    *at = got;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *at, size_t size, CUstream stream) {
    CUstream s;
    CUmemoryPool pool;
    NEED(at && size);
    CHECK(context_stream(stream, &s));
    CHECK(cuDeviceGetMemPool(&pool, s->ctx->ordinal));
    return cuMemAllocFromPoolAsync(at, size, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) {
    CUstream s;
    CHECK(context_stream(stream, &s));
    if (s->capture) return graph_capture_free(s->capture, at);
    sim_takes(cu, SIM_MEM_ASYNC);
    return at ? release(at) : CUDA_ERROR_INVALID_VALUE;
}

// An imported pool has no memory of its own: only its owner allocates from it.
CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool,
                                          CUmemAllocationHandleType type, unsigned long long flags) {
    NEED(handle && pool && !pool->imported && !flags);
    INITIALIZED;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    struct ticket t = ticket_new(TICKET_POOL, (unsigned)pool->ordinal, 0, 0);
    int fd = ticket_to_fd(&t, sizeof t);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)handle = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle,
                                            CUmemAllocationHandleType type, unsigned long long flags) {
    struct ticket t;
    NEED(pool && !flags);
    INITIALIZED;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    NEED(ticket_from_fd((int)(intptr_t)handle, &t, sizeof t) && ticket_good(&t, TICKET_POOL));
    CUmemoryPool p = calloc(1, sizeof *p);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    prepare(p, (int)t.memory.dev);
    p->imported = true;
    *pool = p;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr at) {
    NEED(data);
    INITIALIZED;
    va_lock();
    struct block *b = va_find(at);
    bool ok = b && b->kind == BLOCK_POOL;
    struct ticket t = ticket_new(TICKET_POINTER, ok ? b->dev : 0, ok ? b->id : 0, ok ? b->size : 0);
    va_unlock();
    NEED(ok);
    _Static_assert(sizeof t <= sizeof data->reserved, "ticket");
    memset(data, 0, sizeof *data);
    memcpy(data->reserved, &t, sizeof t);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *at, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    struct ticket t;
    NEED(at && data && pool && pool->imported);
    INITIALIZED;
    memcpy(&t, data->reserved, sizeof t);
    NEED(ticket_good(&t, TICKET_POINTER));
    CHECK(ticket_open(&t, NULL, pool, at));
    return CUDA_SUCCESS;
}

PTSZ(cuMemAllocAsync);
PTSZ(cuMemAllocFromPoolAsync);
PTSZ(cuMemFreeAsync);
