// SPDX-License-Identifier: Apache-2.0
//
// processes.c: who uses a device, with how much memory and time.
//
// Invariants:
// - A process is listed while it has a context on the device. PIDs are those of
//   the caller's PID namespace; processes outside it are not listed. With
//   host_pids they are numbers beyond any that the kernel gives, as a container
//   sees them on a driver that knows nothing of its namespace.
// - Utilisation is over the last ten complete intervals of the fixed grid.
// - MPS clients are listed with all processes, and again by themselves; their
//   server is only among all.
// - The simulation has no graphics: those lists are empty.
#define _GNU_SOURCE
#include "internal.h"

#include <time.h>

struct user {
    unsigned pid, gi, ci, sm, mem;
    uint64_t used;
};

enum kind { ALL, MPS_CLIENTS };

// users_of fills in at most SIM_MAX_CLIENTS entries.
static unsigned users_of(struct target *t, enum kind kind, struct user *list) {
    unsigned n = 0;
    uint64_t now = sim_now(), total = t->d->total_bytes;
    sim_lock(nv);
    sim_reap(nv);
    sim_lock_device(nv, t->dev);
    sim_advance(nv, t->dev, now);
    sim_unlock_device(nv, t->dev);
    for (unsigned i = 0; i < atomic_load(&nv->client_high); i++) {
        struct sim_client *c = &nv->clients[i];
        struct sim_work *w = &c->work[t->dev];
        if (!atomic_load(&c->in_use) || !atomic_load(&w->contexts)) continue;
        if (kind == MPS_CLIENTS && atomic_load(&c->mps.role) != SIM_MPS_CLIENT) continue;
        if (t->gi != SIM_WHOLE_GPU && (w->gi != t->gi || w->ci != t->ci)) continue;
        int pid = sim_client_pid(nv, c);
        if (pid <= 0) continue;
        if (nv->host_pids) pid += 1 << 22;
        uint64_t used = atomic_load(&w->used_bytes);
        uint64_t busy = sim_busy_over(&w->buckets, now, 10);
        list[n++] = (struct user){.pid = (unsigned)pid, .gi = w->gi, .ci = w->ci, .used = used,
                                  .sm = sim_percent(busy, 10),
                                  .mem = (unsigned)(used * 100 / total)};
    }
    sim_unlock(nv);
    return n;
}

static unsigned users(struct target *t, struct user *list) { return users_of(t, ALL, list); }

static nvmlReturn_t running(nvmlDevice_t device, enum kind kind, unsigned *count,
                            nvmlProcessInfo_v1_t *first, nvmlProcessInfo_t *second) {
    struct target t;
    struct user list[SIM_MAX_CLIENTS];
    NEED(count);
    CHECK(find(device, &t));
    unsigned n = users_of(&t, kind, list), room = *count;
    *count = n;
    if (n > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    NEED(!n || first || second);
    for (unsigned i = 0; i < n; i++) {
        if (first)
            first[i] = (nvmlProcessInfo_v1_t){list[i].pid, list[i].used};
        else
            second[i] = (nvmlProcessInfo_t){list[i].pid, list[i].used, list[i].gi, list[i].ci};
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t none(nvmlDevice_t device, unsigned *count) {
    struct target t;
    NEED(count);
    CHECK(find(device, &t));
    *count = 0;
    return NVML_SUCCESS;
}

// The second and third versions have the same layout.
_Static_assert(sizeof(nvmlProcessInfo_v2_t) == sizeof(nvmlProcessInfo_t), "layout");

#define RUNNING(name, kind)                                                                     \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos) {  \
        return running(device, kind, count, infos, NULL);                                       \
    }                                                                                           \
    nvmlReturn_t name##_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) { \
        return running(device, kind, count, NULL, (nvmlProcessInfo_t *)infos);                  \
    }                                                                                           \
    nvmlReturn_t name##_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) { \
        return running(device, kind, count, NULL, infos);                                       \
    }

RUNNING(nvmlDeviceGetComputeRunningProcesses, ALL)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, MPS_CLIENTS)

#define NONE(name, type)                                                         \
    nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos) { \
        (void)infos;                                                             \
        return none(device, count);                                              \
    }

NONE(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_t *list) {
    struct target t;
    struct user found[SIM_MAX_CLIENTS];
    NEED(list);
    CHECK(find(device, &t));
    if (list->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    unsigned n = list->mode == 0 ? users(&t, found) : 0, room = list->numProcArrayEntries;
    list->numProcArrayEntries = n;
    if (n > room || (n && !list->procArray)) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){.pid = found[i].pid,
                                                      .usedGpuMemory = found[i].used,
                                                      .gpuInstanceId = found[i].gi,
                                                      .computeInstanceId = found[i].ci};
    return NVML_SUCCESS;
}

// sampled keeps the processes with work in the window, if the window's end is
// later than seen, and returns that end as a CPU time stamp in microseconds.
static unsigned sampled(struct target *t, struct user *list, uint64_t seen, uint64_t *stamp) {
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    uint64_t since = sim_now() % SIM_BUCKET_NS;
    *stamp = (uint64_t)wall.tv_sec * 1000000 + (uint64_t)wall.tv_nsec / 1000 - since / 1000;
    if (*stamp <= seen) return 0;
    unsigned n = users(t, list), kept = 0;
    for (unsigned i = 0; i < n; i++)
        if (list[i].sm) list[kept++] = list[i];
    return kept;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long seen) {
    struct target t;
    struct user list[SIM_MAX_CLIENTS];
    uint64_t stamp;
    NEED(count);
    CHECK(find_gpu(device, &t));
    if (atomic_load(&t.d->mig_current)) return NVML_ERROR_NOT_SUPPORTED;
    unsigned n = sampled(&t, list, seen, &stamp), room = samples ? *count : 0;
    *count = n;
    if (!n) return NVML_ERROR_NOT_FOUND;
    if (n > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){
            .pid = list[i].pid, .timeStamp = stamp, .smUtil = list[i].sm, .memUtil = list[i].mem};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *info) {
    struct target t;
    struct user list[SIM_MAX_CLIENTS];
    uint64_t stamp;
    NEED(info);
    CHECK(find_gpu(device, &t));
    if (info->version != nvmlProcessesUtilizationInfo_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (atomic_load(&t.d->mig_current)) return NVML_ERROR_NOT_SUPPORTED;
    unsigned n = sampled(&t, list, info->lastSeenTimeStamp, &stamp);
    unsigned room = info->procUtilArray ? info->processSamplesCount : 0;
    info->processSamplesCount = n;
    if (!n) return NVML_ERROR_NOT_FOUND;
    if (n > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .pid = list[i].pid, .timeStamp = stamp, .smUtil = list[i].sm, .memUtil = list[i].mem};
    return NVML_SUCCESS;
}

FACT(nvmlDeviceGetAccountingMode, nvmlEnableState_t, find_gpu, NVML_FEATURE_DISABLED)
