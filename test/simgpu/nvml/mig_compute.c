// SPDX-License-Identifier: Apache-2.0
//
// mig_compute.c: compute instances inside a GPU instance.
//
// Invariants:
// - Compute instances of one GPU instance occupy disjoint ranges of its compute
//   slices; one is destroyed only when no process runs in it.
// - A compute instance that is made again has another UUID.
#define _GNU_SOURCE
#include "mig.h"

#include <stdio.h>
#include <string.h>

static struct nvmlComputeInstance_st handles[SIM_MAX_DEVICES][SIM_MAX_INSTANCES][8];

static nvmlComputeInstance_t ci_handle(unsigned dev, unsigned gi, unsigned ci) {
    handles[dev][gi][ci] = (struct nvmlComputeInstance_st){dev, gi, ci};
    return (nvmlComputeInstance_t){&handles[dev][gi][ci]};
}

static nvmlReturn_t find_ci(nvmlComputeInstance_t h, struct instance *i, struct sim_ci **ci) {
    const char *p = (const char *)h.handle;
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    NEED(p >= (const char *)handles && p < (const char *)handles + sizeof handles);
    CHECK(find_gi(gi_handle(h.handle->dev, h.handle->gi), i));
    i->t.ci = h.handle->ci;
    *ci = &i->gi->ci[i->t.ci];
    NEED((*ci)->used);
    return NVML_SUCCESS;
}

// ci_slices gives the compute slices of a compute instance profile, 0 for none.
unsigned ci_slices(unsigned profile) {
    static const unsigned slices[] = {1, 2, 3, 4, 7, 0, 0, 0, 0};
    return profile < sizeof slices / sizeof *slices ? slices[profile] : 0;
}

// offered: the profiles that a GPU instance of that many slices has.
static bool offered(unsigned profile, unsigned gi_slices) {
    unsigned n = ci_slices(profile);
    return n && n <= gi_slices && !(n == 3 && gi_slices == 4);
}

static nvmlReturn_t describe(struct instance *i, unsigned profile,
                             nvmlComputeInstanceProfileInfo_v3_t *v) {
    if (!offered(profile, i->p->slices)) return NVML_ERROR_NOT_SUPPORTED;
    unsigned n = ci_slices(profile);
    *v = (nvmlComputeInstanceProfileInfo_v3_t){
        .version = nvmlComputeInstanceProfileInfo_v3, .id = profile, .sliceCount = n,
        .instanceCount = i->p->slices / n, .multiprocessorCount = i->p->sms * n / i->p->slices,
        .sharedCopyEngineCount = i->p->copy, .sharedDecoderCount = i->p->decoders,
        .sharedJpegCount = i->p->jpegs, .sharedOfaCount = i->p->ofas};
    if (n == i->p->slices)
        snprintf(v->name, sizeof v->name, "%s", i->p->name);
    else
        snprintf(v->name, sizeof v->name, "MIG %uc.%s", n, i->p->name + strlen("MIG "));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gpu_instance,
                                                          unsigned int profile, unsigned int engine,
                                                          nvmlComputeInstanceProfileInfo_t *info) {
    struct instance i;
    nvmlComputeInstanceProfileInfo_v3_t v;
    NEED(info && profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT &&
         engine < NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT);
    CHECK(find_gi(gpu_instance, &i));
    CHECK(describe(&i, profile, &v));
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = v.id, .sliceCount = v.sliceCount, .instanceCount = v.instanceCount,
        .multiprocessorCount = v.multiprocessorCount,
        .sharedCopyEngineCount = v.sharedCopyEngineCount,
        .sharedDecoderCount = v.sharedDecoderCount, .sharedJpegCount = v.sharedJpegCount,
        .sharedOfaCount = v.sharedOfaCount};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    nvmlGpuInstance_t gpu_instance, unsigned int profile, unsigned int engine,
    nvmlComputeInstanceProfileInfo_v2_t *info) {
    struct instance i;
    nvmlComputeInstanceProfileInfo_v3_t v;
    NEED(info && profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT &&
         engine < NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT);
    CHECK(find_gi(gpu_instance, &i));
    CHECK(describe(&i, profile, &v));
    // Version 3 is version 2 with one more member at its end.
    if (info->version == nvmlComputeInstanceProfileInfo_v3)
        memcpy(info, &v, sizeof v);
    else if (info->version == nvmlComputeInstanceProfileInfo_v2)
        memcpy(info, &v, sizeof *info), info->version = nvmlComputeInstanceProfileInfo_v2;
    else
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return NVML_SUCCESS;
}

static bool is_free(struct sim_gi *gi, unsigned start, unsigned n) {
    for (unsigned c = 0; c < 8; c++)
        if (gi->ci[c].used && start < gi->ci[c].start + gi->ci[c].slices && gi->ci[c].start < start + n)
            return false;
    return true;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t gpu_instance,
                                                                unsigned int profile,
                                                                unsigned int *count) {
    struct instance i;
    NEED(count);
    CHECK(find_gi(gpu_instance, &i));
    if (!offered(profile, i.p->slices)) return NVML_ERROR_NOT_SUPPORTED;
    unsigned n = ci_slices(profile);
    *count = 0;
    for (unsigned at = 0; at + n <= i.p->slices; at++)
        if (is_free(i.gi, at, n)) ++*count, at += n - 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    nvmlGpuInstance_t gpu_instance, unsigned int profile,
    nvmlComputeInstancePlacement_t *placements, unsigned int *count) {
    struct instance i;
    NEED(count);
    CHECK(find_gi(gpu_instance, &i));
    if (!offered(profile, i.p->slices)) return NVML_ERROR_NOT_SUPPORTED;
    unsigned n = ci_slices(profile), possible = i.p->slices - n + 1;
    if (placements) {
        if (*count < possible) return NVML_ERROR_INSUFFICIENT_SIZE;
        for (unsigned at = 0; at < possible; at++)
            placements[at] = (nvmlComputeInstancePlacement_t){at, n};
    }
    *count = possible;
    return NVML_SUCCESS;
}

static nvmlReturn_t create(nvmlGpuInstance_t gpu_instance, unsigned profile, const unsigned *where,
                           nvmlComputeInstance_t *made) {
    struct instance i;
    NEED(made);
    CHECK(find_gi(gpu_instance, &i));
    if (!is_root()) return NVML_ERROR_NO_PERMISSION;
    if (!offered(profile, i.p->slices)) return NVML_ERROR_NOT_SUPPORTED;
    unsigned n = ci_slices(profile);
    NEED(!where || *where + n <= i.p->slices);
    nvmlReturn_t ret = NVML_ERROR_INSUFFICIENT_RESOURCES;
    char seed[64];
    sim_uuid_text(seed, sizeof seed, "GPU", i.t.d->uuid);
    sim_lock(nv);
    for (unsigned at = 0; at + n <= i.p->slices && ret != NVML_SUCCESS; at++) {
        if ((where && *where != at) || !is_free(i.gi, at, n)) continue;
        unsigned c = 0;
        while (i.gi->ci[c].used) c++;
        struct sim_ci *ci = &i.gi->ci[c];
        *ci = (struct sim_ci){.profile = profile, .start = at, .slices = n};
        sim_uuid(ci->uuid, seed, 1 + atomic_fetch_add(&i.t.d->mig_generation, 1));
        ci->used = 1;
        *made = ci_handle(i.t.dev, i.t.gi, c);
        ret = NVML_SUCCESS;
    }
    sim_unlock(nv);
    if (ret == NVML_SUCCESS) mig_changed(i.t.dev);
    return ret;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpu_instance,
                                                  unsigned int profile,
                                                  nvmlComputeInstance_t *made) {
    return create(gpu_instance, profile, NULL, made);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    nvmlGpuInstance_t gpu_instance, unsigned int profile,
    const nvmlComputeInstancePlacement_t *placement, nvmlComputeInstance_t *made) {
    NEED(placement);
    return create(gpu_instance, profile, &placement->start, made);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute_instance) {
    struct instance i;
    struct sim_ci *ci;
    CHECK(find_ci(compute_instance, &i, &ci));
    if (!is_root()) return NVML_ERROR_NO_PERMISSION;
    sim_lock(nv);
    bool busy = mig_busy(i.t.dev, i.t.gi, i.t.ci);
    if (!busy) ci->used = 0;
    sim_unlock(nv);
    if (busy) return NVML_ERROR_IN_USE;
    mig_changed(i.t.dev);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpu_instance,
                                                unsigned int profile,
                                                nvmlComputeInstance_t *instances,
                                                unsigned int *count) {
    struct instance i;
    NEED(instances && count);
    CHECK(find_gi(gpu_instance, &i));
    if (!offered(profile, i.p->slices)) return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    for (unsigned c = 0; c < 8; c++)
        if (i.gi->ci[c].used && i.gi->ci[c].profile == profile)
            instances[(*count)++] = ci_handle(i.t.dev, i.t.gi, c);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpu_instance, unsigned int id,
                                                   nvmlComputeInstance_t *compute_instance) {
    struct instance i;
    NEED(compute_instance);
    CHECK(find_gi(gpu_instance, &i));
    if (id >= 8 || !i.gi->ci[id].used) return NVML_ERROR_NOT_FOUND;
    *compute_instance = ci_handle(i.t.dev, i.t.gi, id);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute_instance,
                                           nvmlComputeInstanceInfo_t *info) {
    struct instance i;
    struct sim_ci *ci;
    NEED(info);
    CHECK(find_ci(compute_instance, &i, &ci));
    *info = (nvmlComputeInstanceInfo_t){.device = handle(i.t.dev, SIM_WHOLE_GPU, SIM_WHOLE_GPU),
                                        .gpuInstance = gi_handle(i.t.dev, i.t.gi),
                                        .id = i.t.ci,
                                        .profileId = ci->profile,
                                        .placement = {ci->start, ci->slices}};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info) {
    return nvmlComputeInstanceGetInfo_v2(instance, info);
}
