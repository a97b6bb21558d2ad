// SPDX-License-Identifier: Apache-2.0
//
// What the driver keeps reserved on a device beyond what programs hold: memory
// pools, and the memory of graphs, of which each device has one.
//
// Invariants:
//   1. A pool is charged what it has reserved when the driver was last asked,
//      plus the sizes of the calls under way. The driver is asked after every
//      call that can make a pool grow or shrink.
//   2. An allocation that doesn't fit beside what the pools have reserved first
//      makes them give back what they don't use: at the limit, time is traded for
//      exactness.
//   3. pool_lock is held while the driver is asked (it only reads there): an older
//      answer never overwrites a newer one.

#include "pool.h"

static uint64_t reserved(const struct vgpu_process *process, const struct vgpu_pool *pool) {
    uint64_t bytes = 0;
    cu_result result =
        pool->of_graphs
            ? VGPU_REAL(cuDeviceGetGraphMemAttribute)(process->ordinal[pool->device],
                                                      CU_GRAPH_RESERVED, &bytes)
            : VGPU_REAL(cuMemPoolGetAttribute)(pool->handle, CU_POOL_RESERVED, &bytes);
    return result == CU_OK ? bytes : pool->reserved;
}

bool vgpu_pool_settle(struct vgpu_process *process, struct vgpu_pool *pool, uint64_t mine) {
    uint64_t now = reserved(process, pool), have = pool->reserved + mine;
    pool->pending -= mine;
    if (now > have && now <= have + pool->pending) // another call's growth, charged already
        now = have;
    if (now > have && !vgpu_charge(process, pool->device, now - have)) {
        pool->reserved = have;
        return false;
    }
    if (now < have)
        vgpu_uncharge(process, pool->device, have - now);
    pool->reserved = now;
    return true;
}

struct vgpu_pool *vgpu_pool_find(struct vgpu_process *process, cu_pool handle, int device) {
    for (uint32_t i = 0; i < process->pool_count; i++)
        if (process->pool[i].handle == handle)
            return &process->pool[i];
    for (uint32_t i = 0; i <= process->pool_count && i < VGPU_POOLS; i++) {
        if (process->pool[i].handle != NULL)
            continue;
        process->pool[i] = (struct vgpu_pool){.handle = handle, .device = device};
        process->pool_count += i == process->pool_count;
        return &process->pool[i];
    }
    return NULL;
}

void vgpu_refresh_pools(struct vgpu_process *process) {
    vgpu_lock(&process->pool_lock);
    for (uint32_t i = 0; i < process->pool_count; i++)
        if (process->pool[i].handle != NULL && process->pool[i].device >= 0)
            vgpu_pool_settle(process, &process->pool[i], 0);
    vgpu_unlock(&process->pool_lock);
}

void vgpu_pools_trim(struct vgpu_process *process, int device) {
    for (uint32_t i = 0; i < process->pool_count; i++) {
        const struct vgpu_pool *pool = &process->pool[i];
        if (pool->handle == NULL || pool->device != device)
            continue;
        if (pool->of_graphs)
            VGPU_REAL(cuDeviceGraphMemTrim)(process->ordinal[device]);
        else
            VGPU_REAL(cuMemPoolTrimTo)(pool->handle, 0);
    }
    vgpu_refresh_pools(process);
}
