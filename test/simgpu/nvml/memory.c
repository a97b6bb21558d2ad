// SPDX-License-Identifier: Apache-2.0
//
// memory.c: device memory and the driver's per-cgroup limits (NVML 13.4).
//
// Invariants:
// - total = reserved + used + free; used counts live processes only.
// - Limits are kept per cgroup directory. Removing the cgroup, or setting
//   soft 0 and hard NVML_DEVICE_MEMORY_LIMIT_MAX, clears them.
// - A limit set while processes run binds them at their next allocation.
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <string.h>

static nvmlReturn_t measure(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    struct target t;
    CHECK(find(device, &t));
    sim_lock(nv);
    sim_reap(nv);
    sim_unlock(nv);
    uint64_t capacity = sim_capacity(nv, t.dev, t.gi);
    memory->used = sim_used(nv, t.dev, t.gi);
    memory->reserved = t.gi == SIM_WHOLE_GPU ? t.d->reserved_bytes : 0;
    memory->total = capacity + memory->reserved;
    memory->free = capacity > memory->used ? capacity - memory->used : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    NEED(memory);
    if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return measure(device, memory);
}

// The first version has no member for reserved memory: it counts as used.
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlMemory_v2_t m;
    NEED(memory);
    CHECK(measure(device, &m));
    *memory = (nvmlMemory_t){.total = m.total, .free = m.free, .used = m.used + m.reserved};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1) {
    struct target t;
    NEED(bar1);
    CHECK(find(device, &t));
    bar1->bar1Total = bar1->bar1Free = 128ull << 30;
    bar1->bar1Used = 0;
    return NVML_SUCCESS;
}

// limit_of finds the entry of a cgroup, after dropping those whose cgroup is
// gone. The caller holds the state lock.
static struct sim_limit *limit_of(uint64_t id, struct sim_limit **unused) {
    struct sim_limit *found = NULL;
    *unused = NULL;
    for (unsigned i = SIM_MAX_LIMITS; i-- > 0;) {
        struct sim_limit *l = &nv->limits[i];
        uint64_t now;
        if (atomic_load(&l->in_use) &&
            (sim_cgroup_open(l->path, &now) != 0 || now != l->cgroup_id)) {
            atomic_store(&l->in_use, 0);
            for (unsigned c = 0; c < SIM_MAX_CLIENTS; c++)
                atomic_fetch_and(&nv->clients[c].limits[i / 64], ~(1ull << (i % 64)));
        }
        if (!atomic_load(&l->in_use))
            *unused = l;
        else if (l->cgroup_id == id)
            found = l;
    }
    return found;
}

static void cover_clients(struct sim_limit *l) {
    unsigned n = (unsigned)(l - nv->limits);
    for (unsigned c = 0; c < SIM_MAX_CLIENTS; c++)
        if (atomic_load(&nv->clients[c].in_use) && sim_cgroup_covers(l, &nv->clients[c]))
            atomic_fetch_or(&nv->clients[c].limits[n / 64], 1ull << (n % 64));
}

static nvmlReturn_t open_cgroup(const char *path, uint64_t *id) {
    NEED(path && *path && strlen(path) < sizeof nv->limits[0].path);
    return sim_cgroup_open(path, id) == 0 ? NVML_SUCCESS : NVML_ERROR_OPERATING_SYSTEM;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits) {
    struct target t;
    struct sim_limit *l, *unused;
    uint64_t id;
    NEED(limits);
    CHECK(find_gpu(device, &t));
    if (!is_root()) return NVML_ERROR_NO_PERMISSION;
    const uint64_t none = NVML_DEVICE_MEMORY_LIMIT_MAX;
    NEED(limits->softLimit <= limits->hardLimit);
    NEED(limits->hardLimit == none || limits->hardLimit <= t.d->total_bytes);
    CHECK(open_cgroup(limits->nameSpace, &id));
    nvmlReturn_t ret = NVML_SUCCESS;
    sim_lock(nv);
    l = limit_of(id, &unused);
    if (!l && unused) {
        l = unused;
        snprintf(l->path, sizeof l->path, "%s", limits->nameSpace);
        l->cgroup_id = id;
        for (unsigned d = 0; d < SIM_MAX_DEVICES; d++) {
            atomic_store(&l->soft[d], 0);
            atomic_store(&l->hard[d], none);
        }
        atomic_store(&l->in_use, 1);
    }
    if (l) {
        atomic_store(&l->soft[t.dev], limits->softLimit);
        atomic_store(&l->hard[t.dev], limits->hardLimit);
        cover_clients(l);
    } else {
        ret = NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    sim_unlock(nv);
    return ret;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits) {
    struct target t;
    struct sim_limit *l, *unused;
    uint64_t id;
    NEED(limits);
    CHECK(find_gpu(device, &t));
    CHECK(open_cgroup(limits->nameSpace, &id));
    sim_lock(nv);
    sim_reap(nv);
    l = limit_of(id, &unused);
    if (l) {
        limits->softLimit = atomic_load(&l->soft[t.dev]);
        limits->hardLimit = atomic_load(&l->hard[t.dev]);
        limits->currentUsed = sim_limit_used(nv, (unsigned)(l - nv->limits), t.dev);
    }
    sim_unlock(nv);
    return l ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
