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
//   3. pools.lock is held while the driver is asked, so that an older answer never
//      overwrites a newer one, and while it trims or destroys a pool: no thread
//      names a pool that another one is destroying, nor takes its handle's next
//      bearer for it.

#include "memory/pool.h"

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
    if (now > have && !vgpu_charge_taken(process, pool->device, now - have)) {
        pool->reserved = have;
        return false;
    }
    if (now < have)
        vgpu_uncharge(process, pool->device, have - now);
    pool->reserved = now;
    return true;
}

struct vgpu_pool *vgpu_pool_find(struct vgpu_process *process, cu_pool handle, int device) {
    for (uint32_t i = 0; i < process->pools.count; i++)
        if (process->pools.pool[i].handle == handle)
            return &process->pools.pool[i];
    for (uint32_t i = 0; i <= process->pools.count && i < VGPU_POOLS; i++) {
        if (process->pools.pool[i].handle != NULL)
            continue;
        cu_pool own = NULL;
        if (device >= 0)
            VGPU_REAL(cuDeviceGetDefaultMemPool)(&own, process->ordinal[device]);
        process->pools.pool[i] = (struct vgpu_pool){.handle = handle, .device = device, .is_default = handle == own};
        process->pools.count += i == process->pools.count;
        return &process->pools.pool[i];
    }
    return NULL;
}

bool vgpu_pools_grow(struct vgpu_process *process, int device) {
    bool grow = false;
    vgpu_lock_hot(&process->pools.lock);
    for (uint32_t i = 0; i < process->pools.count; i++)
        grow |= process->pools.pool[i].handle != NULL && process->pools.pool[i].device == device &&
                process->pools.pool[i].pending != 0;
    vgpu_unlock_hot(&process->pools.lock);
    return grow;
}

static void trim(const struct vgpu_process *process, const struct vgpu_pool *pool) {
    int mode = vgpu_capture_mode(CU_CAPTURE_RELAXED);
    if (pool->of_graphs)
        VGPU_REAL(cuDeviceGraphMemTrim)(process->ordinal[pool->device]);
    else
        VGPU_REAL(cuMemPoolTrimTo)(pool->handle, 0);
    vgpu_capture_mode(mode);
}

// Asks for every pool, after making those of one device give back what they keep, the
// memory of its graphs only if that is said.
static void ask_all(struct vgpu_process *process, int trimmed, bool graphs) {
    vgpu_lock_hot(&process->pools.lock);
    for (uint32_t i = 0; i < process->pools.count; i++) {
        struct vgpu_pool *pool = &process->pools.pool[i];
        if (pool->handle == NULL || pool->device < 0)
            continue;
        if (pool->device == trimmed && (graphs || !pool->of_graphs))
            trim(process, pool);
        vgpu_pool_settle(process, pool, 0);
    }
    vgpu_unlock_hot(&process->pools.lock);
}

void vgpu_refresh_pools(struct vgpu_process *process) { ask_all(process, -1, false); }

void vgpu_pools_trim_for_graph(struct vgpu_process *process, int device) { ask_all(process, device, false); }

void vgpu_pools_trim(struct vgpu_process *process, int device) {
    vgpu_lock(&process->graphs.lock); // a launch under way counts on what its pool keeps
    ask_all(process, device, true);
    vgpu_unlock(&process->graphs.lock);
}
