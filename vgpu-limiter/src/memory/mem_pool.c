// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered memory. A pool keeps device memory that its user has freed, so
// what counts is what the pool has reserved on the device (pool.c).
//
// Invariants:
//   1. An allocation is charged before the call, whether or not the pool will
//      grow by it; once the driver has answered, the pool's growth is.
//   2. A captured call takes and frees nothing: it makes a node of a graph
//      (mem_graph.c).
//   3. What comes of a pool is remembered only to be charged apart should its
//      pool be destroyed or not say what it has reserved, or to be shared: of a
//      device's own pool, which can be neither destroyed nor shared, nothing is.

#include "memory/memory.h"
#include "memory/pool.h"

// The device of the stream's context, which need not be the thread's.
static cu_result stream_device(struct vgpu_process *process, cu_stream stream, struct vgpu_here *here) {
    cu_result result = vgpu_here(process, here);
    cu_ctx ctx = NULL, popped;
    if (result != CU_OK || (uintptr_t)stream <= 2 || // the default streams are the thread's
        VGPU_REAL(cuStreamGetCtx)(stream, &ctx) != CU_OK || ctx == here->ctx)
        return result;
    if (VGPU_REAL(cuCtxPushCurrent_v2)(ctx) != CU_OK)
        return result;
    result = vgpu_here(process, here);
    VGPU_REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

// Charges a call of this size to a pool's device and counts it as under way.
static bool reserve(bool per_thread, struct vgpu_process *process, struct vgpu_pool *pool,
                    uint64_t bytes, cu_stream stream) {
    vgpu_refresh_pools(process);
    bool fits = vgpu_try_charge(process, pool->device, bytes);
    if (!fits) {
        vgpu_stream_wait(process, per_thread, stream); // what was freed on it becomes unused
        vgpu_pools_trim(process, pool->device);
        fits = vgpu_charge(process, pool->device, bytes);
    }
    vgpu_lock_hot(&process->pools.lock);
    pool->pending += fits ? bytes : 0;
    vgpu_unlock_hot(&process->pools.lock);
    return fits;
}

static cu_result free_async(bool per_thread, cu_ptr ptr, cu_stream stream) {
    cu_result (*real)(cu_ptr, cu_stream) = VGPU_REAL_OF(cuMemFreeAsync, per_thread);
    struct vgpu_process *process = atomic_load(&vgpu_process_page);
    // A captured call frees nothing now: what it names stays charged.
    if (process != NULL && vgpu_is_capturing(process, per_thread, stream))
        return real(ptr, stream);
    struct vgpu_release release;
    vgpu_release_begin(&release, vgpu_key(VGPU_POINTER, ptr));
    cu_result result = real(ptr, stream);
    if (release.process != NULL && result == CU_OK && (release.entry.value & VGPU_POOLED) == 0)
        vgpu_stream_wait(release.process, per_thread, stream); // plain memory is the device's only when the stream is through
    vgpu_release_end(&release, result);
    return result;
}

// On a driver that doesn't say which pool it takes memory from, which none of
// NVIDIA's does, the memory is charged apart.
static cu_result alloc_alone(bool per_thread, cu_ptr *ptr, size_t bytes, cu_stream stream,
                             cu_device device) {
    struct vgpu_call call;
    if (vgpu_begin_on(&call, device, bytes) != CU_OK)
        return call.result;
    call.result = VGPU_REAL_OF(cuMemAllocAsync, per_thread)(ptr, bytes, stream);
    if (!vgpu_commit(&call, call.result == CU_OK ? vgpu_key(VGPU_POINTER, *ptr) : 0, bytes)) {
        free_async(per_thread, *ptr, stream);
        vgpu_stream_wait(call.process, per_thread, stream);
    }
    return call.result;
}

static cu_result take(bool per_thread, cu_ptr *ptr, size_t bytes, cu_pool named, cu_stream stream) {
    return named != NULL ? VGPU_REAL_OF(cuMemAllocFromPoolAsync, per_thread)(ptr, bytes, named, stream)
                         : VGPU_REAL_OF(cuMemAllocAsync, per_thread)(ptr, bytes, stream);
}

static cu_result alloc_async(bool per_thread, cu_ptr *ptr, size_t bytes, cu_pool handle,
                             cu_stream stream) {
    cu_result result;
    struct vgpu_here here;
    struct vgpu_process *process = vgpu_process(&result);
    if (process == NULL || (result = stream_device(process, stream, &here)) != CU_OK)
        return result;
    cu_pool named = handle;
    if (vgpu_is_capturing(process, per_thread, stream)) { // a node: charged when it is launched
        atomic_store(&process->graphs.allocate, true);
        return take(per_thread, ptr, bytes, named, stream);
    }
    cu_device device = process->ordinal[here.device];
    if (named == NULL && VGPU_REAL(cuDeviceGetMemPool)(&handle, device) != CU_OK)
        return alloc_alone(per_thread, ptr, bytes, stream, device);
    uint64_t charged = vgpu_round(bytes);
    vgpu_lock_hot(&process->pools.lock);
    struct vgpu_pool *pool = vgpu_pool_find(process, handle, here.device);
    bool fits = pool != NULL && pool->device >= 0 && vgpu_try_charge(process, pool->device, charged);
    if (vgpu_likely(fits))
        pool->pending += charged;
    vgpu_unlock_hot(&process->pools.lock);
    if (pool == NULL) {
        VGPU_LOG_ONCE("memory refused: more than %d memory pools in one process", VGPU_POOLS);
        return CU_OUT_OF_MEMORY;
    }
    if (pool->device < 0) // host memory
        return take(per_thread, ptr, bytes, named, stream);
    if (!fits && !reserve(per_thread, process, pool, charged, stream))
        return CU_OUT_OF_MEMORY;
    result = take(per_thread, ptr, bytes, named, stream);
    vgpu_lock_hot(&process->pools.lock);
    fits = vgpu_pool_settle(process, pool, charged);
    // The pool of a driver that doesn't say what it has reserved seems to have less
    // than it has just given: what comes of it is charged apart.
    bool counted = result != CU_OK || pool->reserved >= charged;
    vgpu_unlock_hot(&process->pools.lock);
    struct vgpu_entry entry = {vgpu_key(VGPU_POINTER, result == CU_OK ? *ptr : 0),
                               vgpu_value(charged, pool->device) | VGPU_POOLED, handle};
    if (vgpu_unlikely(!counted)) {
        entry.value &= ~VGPU_POOLED;
        entry.owner = NULL;
        fits = vgpu_charge_taken(process, pool->device, charged);
    }
    bool remembered = result != CU_OK || !fits || (pool->is_default && counted) || vgpu_remember(process, &entry);
    // A pool grows in steps of its own, by more than was asked for.
    if (result == CU_OK && (!fits || !remembered)) {
        if (!counted && fits)
            vgpu_uncharge(process, pool->device, charged);
        free_async(per_thread, *ptr, stream);
        vgpu_stream_wait(process, per_thread, stream);
        vgpu_pools_trim(process, pool->device);
        result = CU_OUT_OF_MEMORY;
    }
    return result;
}

cu_result cuMemAllocAsync(cu_ptr *ptr, size_t bytes, cu_stream stream) {
    return alloc_async(false, ptr, bytes, NULL, stream);
}
cu_result cuMemAllocAsync_ptsz(cu_ptr *ptr, size_t bytes, cu_stream stream) {
    return alloc_async(true, ptr, bytes, NULL, stream);
}
cu_result cuMemAllocFromPoolAsync(cu_ptr *ptr, size_t bytes, cu_pool pool, cu_stream stream) {
    return alloc_async(false, ptr, bytes, pool, stream);
}
cu_result cuMemAllocFromPoolAsync_ptsz(cu_ptr *ptr, size_t bytes, cu_pool pool, cu_stream stream) {
    return alloc_async(true, ptr, bytes, pool, stream);
}
cu_result cuMemFreeAsync(cu_ptr ptr, cu_stream stream) { return free_async(false, ptr, stream); }
cu_result cuMemFreeAsync_ptsz(cu_ptr ptr, cu_stream stream) {
    return free_async(true, ptr, stream);
}

// The device that a pool's memory is charged to: -1 for the host's, -2 for one of
// which the container has no share. Managed memory may lie anywhere; without a
// device of its own it counts on the container's first.
static int location_device(const struct vgpu_process *process, int type,
                           const struct cu_location *location) {
    if (location->type != CU_LOCATION_DEVICE)
        return type == CU_ALLOC_MANAGED ? 0 : -1;
    int device = vgpu_device_index(process, location->id);
    return device >= 0 ? device : -2;
}

static bool know_pool(struct vgpu_process *process, cu_pool pool, int device) {
    vgpu_lock_hot(&process->pools.lock);
    bool known = vgpu_pool_find(process, pool, device) != NULL;
    vgpu_unlock_hot(&process->pools.lock);
    return known;
}

cu_result cuMemPoolCreate(cu_pool *pool, const struct cu_pool_props *props) {
    VGPU_PROCESS(process);
    int device = props != NULL ? location_device(process, props->type, &props->location) : -1;
    if (device == -2)
        return CU_NOT_PERMITTED;
    cu_result result = VGPU_REAL(cuMemPoolCreate)(pool, props);
    if (result == CU_OK && !know_pool(process, *pool, device)) {
        VGPU_REAL(cuMemPoolDestroy)(*pool);
        result = CU_OUT_OF_MEMORY;
    }
    return result;
}

// The pools that are there without being created.
#define LEARN(pool, location, type, get)                                          \
    do {                                                                          \
        VGPU_PROCESS(process);                                                    \
        int device = location != NULL ? location_device(process, type, location) : -1; \
        if (device == -2)                                                         \
            return CU_NOT_PERMITTED;                                              \
        cu_result result = VGPU_REAL(get)(pool, location, type);                  \
        return result != CU_OK || know_pool(process, *(pool), device) ? result : CU_OUT_OF_MEMORY; \
    } while (0)

cu_result cuMemGetDefaultMemPool(cu_pool *pool, struct cu_location *location, int type) {
    LEARN(pool, location, type, cuMemGetDefaultMemPool);
}
cu_result cuMemGetMemPool(cu_pool *pool, struct cu_location *location, int type) {
    LEARN(pool, location, type, cuMemGetMemPool);
}

struct unowned {
    uint64_t bytes;
};

static bool disown(void *with, struct vgpu_entry *entry) {
    ((struct unowned *)with)->bytes += vgpu_value_bytes(entry->value);
    entry->value &= ~VGPU_POOLED;
    entry->owner = NULL;
    return true;
}

// What was allocated from a destroyed pool lives on until it is freed, and is
// charged apart from then on.
cu_result cuMemPoolDestroy(cu_pool handle) {
    VGPU_PROCESS(process);
    if (atomic_load(&process->launches.captures) == 0) // it would break them
        VGPU_REAL(cuCtxSynchronize)();        // what was freed is free
    vgpu_lock_hot(&process->pools.lock);
    cu_result result = VGPU_REAL(cuMemPoolDestroy)(handle);
    for (uint32_t i = 0; result == CU_OK && i < process->pools.count; i++) {
        struct vgpu_pool *pool = &process->pools.pool[i];
        if (pool->handle != handle)
            continue;
        struct unowned unowned = {0};
        vgpu_table_visit(&process->table, handle, disown, &unowned);
        if (pool->device >= 0 && pool->reserved > unowned.bytes)
            vgpu_uncharge(process, pool->device, pool->reserved - unowned.bytes);
        pool->handle = NULL;
    }
    vgpu_unlock_hot(&process->pools.lock);
    return result;
}

cu_result cuMemPoolTrimTo(cu_pool pool, size_t keep) {
    cu_result why;
    struct vgpu_process *process = vgpu_process(&why);
    cu_result result = VGPU_REAL(cuMemPoolTrimTo)(pool, keep);
    if (process != NULL && result == CU_OK)
        vgpu_refresh_pools(process);
    return result;
}
