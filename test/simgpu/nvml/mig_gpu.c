// SPDX-License-Identifier: Apache-2.0
//
// mig_gpu.c: GPU instances: profiles, placements, creation, destruction.
//
// Invariants:
// - An instance occupies memory slices [start, start + size) of eight, at a
//   start its profile allows; no two instances overlap; no profile has more
//   instances than its maximum, and their compute slices are at most seven.
// - An instance is destroyed only when it holds no compute instance and no
//   process; its id follows from its place, as on real devices.
// - Everything changes under the state lock.
#define _GNU_SOURCE
#include "mig.h"

#include <stdio.h>
#include <string.h>

static struct nvmlGpuInstance_st handles[SIM_MAX_DEVICES][SIM_MAX_INSTANCES];

nvmlGpuInstance_t gi_handle(unsigned dev, unsigned gi) {
    handles[dev][gi] = (struct nvmlGpuInstance_st){dev, gi};
    return (nvmlGpuInstance_t){&handles[dev][gi]};
}

nvmlReturn_t find_gi(nvmlGpuInstance_t h, struct instance *i) {
    const char *p = (const char *)h.handle;
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    NEED(p >= (const char *)handles && p < (const char *)handles + sizeof handles);
    CHECK(find_gpu(handle(h.handle->dev, SIM_WHOLE_GPU, SIM_WHOLE_GPU), &i->t));
    i->t.gi = h.handle->gi;
    i->gi = &i->t.d->gi[i->t.gi];
    NEED(i->gi->used);
    i->p = sim_profile_by_id(i->t.m, i->gi->profile);
    return i->p ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

// mig_ready checks that the device is in MIG mode and the caller may change it.
nvmlReturn_t mig_ready(nvmlDevice_t device, struct target *t) {
    CHECK(find_gpu(device, t));
    if (!t->m->profiles || !atomic_load(&t->d->mig_current)) return NVML_ERROR_NOT_SUPPORTED;
    return is_root() ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

#define PROFILE_INFO(v, p)                                                                          \
    {.version = v, .id = p->id, .sliceCount = p->slices, .instanceCount = p->max,                   \
     .multiprocessorCount = p->sms, .copyEngineCount = p->copy, .decoderCount = p->decoders,        \
     .jpegCount = p->jpegs, .ofaCount = p->ofas, .memorySizeMB = p->memory_mib}

static nvmlReturn_t describe(const struct sim_profile *p, nvmlGpuInstanceProfileInfo_v2_t *v) {
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    if (v->version == nvmlGpuInstanceProfileInfo_v3) {
        *(nvmlGpuInstanceProfileInfo_v3_t *)v = (nvmlGpuInstanceProfileInfo_v3_t)PROFILE_INFO(nvmlGpuInstanceProfileInfo_v3, p);
        snprintf(((nvmlGpuInstanceProfileInfo_v3_t *)v)->name, sizeof v->name, "%s", p->name);
        return NVML_SUCCESS;
    }
    if (v->version != nvmlGpuInstanceProfileInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *v = (nvmlGpuInstanceProfileInfo_v2_t)PROFILE_INFO(nvmlGpuInstanceProfileInfo_v2, p);
    snprintf(v->name, sizeof v->name, "%s", p->name);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info) {
    struct target t;
    NEED(info && profile < NVML_GPU_INSTANCE_PROFILE_COUNT);
    CHECK(find_gpu(device, &t));
    for (const struct sim_profile *p = t.m->profiles; p && p->profile >= 0; p++)
        if (p->profile == (int)profile) return describe(p, info);
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info) {
    struct target t;
    NEED(info);
    CHECK(find_gpu(device, &t));
    return describe(sim_profile_by_id(t.m, id), info);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                 nvmlGpuInstanceProfileInfo_t *info) {
    nvmlGpuInstanceProfileInfo_v2_t v = {.version = nvmlGpuInstanceProfileInfo_v2};
    NEED(info);
    CHECK(nvmlDeviceGetGpuInstanceProfileInfoV(device, profile, &v));
    *info = (nvmlGpuInstanceProfileInfo_t){
        .id = v.id, .sliceCount = v.sliceCount, .instanceCount = v.instanceCount,
        .multiprocessorCount = v.multiprocessorCount, .copyEngineCount = v.copyEngineCount,
        .decoderCount = v.decoderCount, .jpegCount = v.jpegCount, .ofaCount = v.ofaCount,
        .memorySizeMB = v.memorySizeMB};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                           nvmlGpuInstancePlacement_t *placements,
                                                           unsigned int *count) {
    struct target t;
    NEED(count);
    CHECK(mig_ready(device, &t));
    const struct sim_profile *p = sim_profile_by_id(t.m, id);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    if (placements) {
        if (*count < p->start_count) return NVML_ERROR_INSUFFICIENT_SIZE;
        for (unsigned i = 0; i < p->start_count; i++)
            placements[i] = (nvmlGpuInstancePlacement_t){p->starts[i], p->memory_slices};
    }
    *count = p->start_count;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id, nvmlGpuInstancePlacement_t *placements, unsigned int *count) {
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count);
}

// fits reports whether profile p may be placed at start beside d's instances.
static bool fits(struct sim_device *d, const struct sim_model *m, const struct sim_profile *p,
                 unsigned start) {
    unsigned same = 0, slices = p->slices;
    for (unsigned g = 0; g < SIM_MAX_INSTANCES; g++) {
        struct sim_gi *o = &d->gi[g];
        if (!o->used) continue;
        const struct sim_profile *op = sim_profile_by_id(m, o->profile);
        same += o->profile == p->id;
        slices += op ? op->slices : 0;
        if (start < o->start + o->size && o->start < start + p->memory_slices) return false;
    }
    return same < p->max && slices <= 7;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
                                                       unsigned int *count) {
    struct target t;
    NEED(count);
    CHECK(mig_ready(device, &t));
    const struct sim_profile *p = sim_profile_by_id(t.m, id);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    sim_lock(nv);
    struct sim_device copy;
    memcpy(copy.gi, t.d->gi, sizeof copy.gi);
    sim_unlock(nv);
    *count = 0;
    for (unsigned i = 0; i < p->start_count; i++) {
        if (!fits(&copy, t.m, p, p->starts[i])) continue;
        for (unsigned g = 0; g < SIM_MAX_INSTANCES; g++)
            if (!copy.gi[g].used) {
                copy.gi[g] = (struct sim_gi){.used = 1, .profile = p->id, .start = p->starts[i],
                                             .size = p->memory_slices};
                break;
            }
        ++*count;
    }
    return NVML_SUCCESS;
}

// create makes an instance at *at, or where it fits first when at is NULL.
static nvmlReturn_t create(nvmlDevice_t device, unsigned id, const unsigned *at,
                           nvmlGpuInstance_t *made) {
    struct target t;
    NEED(made);
    CHECK(mig_ready(device, &t));
    const struct sim_profile *p = sim_profile_by_id(t.m, id);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t ret = at ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_INSUFFICIENT_RESOURCES;
    sim_lock(nv);
    for (unsigned i = 0; i < p->start_count && ret != NVML_SUCCESS; i++) {
        unsigned start = p->starts[i];
        if (at && *at != start) continue;
        ret = NVML_ERROR_INSUFFICIENT_RESOURCES;
        if (!fits(t.d, t.m, p, start)) continue;
        unsigned gi = 8 / p->memory_slices - 1 + start / p->memory_slices;
        memset(&t.d->gi[gi], 0, sizeof t.d->gi[gi]);
        t.d->gi[gi].profile = id;
        t.d->gi[gi].start = start;
        t.d->gi[gi].size = p->memory_slices;
        t.d->gi[gi].used = 1;
        *made = gi_handle(t.dev, gi);
        ret = NVML_SUCCESS;
    }
    sim_unlock(nv);
    if (ret == NVML_SUCCESS) mig_changed(t.dev);
    return ret;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id,
                                         nvmlGpuInstance_t *made) {
    return create(device, id, NULL, made);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                      const nvmlGpuInstancePlacement_t *placement,
                                                      nvmlGpuInstance_t *made) {
    NEED(placement);
    return create(device, id, &placement->start, made);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpu_instance) {
    struct instance i;
    CHECK(find_gi(gpu_instance, &i));
    if (!is_root()) return NVML_ERROR_NO_PERMISSION;
    sim_lock(nv);
    bool busy = mig_busy(i.t.dev, i.t.gi, SIM_WHOLE_GPU);
    for (unsigned c = 0; c < 8; c++) busy |= i.gi->ci[c].used;
    if (!busy) i.gi->used = 0;
    sim_unlock(nv);
    if (busy) return NVML_ERROR_IN_USE;
    mig_changed(i.t.dev);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id,
                                       nvmlGpuInstance_t *instances, unsigned int *count) {
    struct target t;
    NEED(instances && count);
    CHECK(mig_ready(device, &t));
    if (!sim_profile_by_id(t.m, id)) return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    for (unsigned g = 0; g < SIM_MAX_INSTANCES; g++)
        if (t.d->gi[g].used && t.d->gi[g].profile == id)
            instances[(*count)++] = gi_handle(t.dev, g);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id,
                                          nvmlGpuInstance_t *gpu_instance) {
    struct target t;
    NEED(gpu_instance);
    CHECK(mig_ready(device, &t));
    if (id >= SIM_MAX_INSTANCES || !t.d->gi[id].used) return NVML_ERROR_NOT_FOUND;
    *gpu_instance = gi_handle(t.dev, id);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpu_instance, nvmlGpuInstanceInfo_t *info) {
    struct instance i;
    NEED(info);
    CHECK(find_gi(gpu_instance, &i));
    *info = (nvmlGpuInstanceInfo_t){.device = handle(i.t.dev, SIM_WHOLE_GPU, SIM_WHOLE_GPU),
                                    .id = i.t.gi,
                                    .profileId = i.gi->profile,
                                    .placement = {i.gi->start, i.gi->size}};
    return NVML_SUCCESS;
}
