// SPDX-License-Identifier: Apache-2.0
//
// mig_mode.c: MIG mode, and MIG devices as devices.
//
// Invariants:
// - The mode changes at once on an idle device without instances; otherwise it
//   stays pending and activationStatus says IN_USE.
// - A MIG device is a compute instance; its index counts those before it.
#define _GNU_SOURCE
#include "mig.h"

bool mig_busy(unsigned dev, unsigned gi, unsigned ci) {
    bool busy = false;
    sim_reap(nv);
    for (unsigned i = 0; i < atomic_load(&nv->client_high); i++) {
        struct sim_client *c = &nv->clients[i];
        struct sim_work *w = &c->work[dev];
        busy |= atomic_load(&c->in_use) && atomic_load(&w->contexts) &&
                (gi == SIM_WHOLE_GPU || w->gi == gi) && (ci == SIM_WHOLE_GPU || w->ci == ci);
    }
    return busy;
}

void mig_changed(unsigned dev) {
    sim_event(nv, (struct sim_event){.type = nvmlEventMigConfigChange,
                                     .device = dev,
                                     .gi = SIM_WHOLE_GPU,
                                     .ci = SIM_WHOLE_GPU});
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *status) {
    struct target t;
    NEED(status && (mode == NVML_DEVICE_MIG_DISABLE || mode == NVML_DEVICE_MIG_ENABLE));
    CHECK(find_gpu(device, &t));
    if (!t.m->profiles) return NVML_ERROR_NOT_SUPPORTED;
    if (!is_root()) return NVML_ERROR_NO_PERMISSION;
    sim_lock(nv);
    bool blocked = mig_busy(t.dev, SIM_WHOLE_GPU, SIM_WHOLE_GPU);
    for (unsigned g = 0; g < SIM_MAX_INSTANCES; g++) blocked |= t.d->gi[g].used;
    atomic_store(&t.d->mig_pending, mode);
    if (!blocked) atomic_store(&t.d->mig_current, mode);
    *status = atomic_load(&t.d->mig_current) == mode ? NVML_SUCCESS : NVML_ERROR_IN_USE;
    sim_unlock(nv);
    if (*status == NVML_SUCCESS) mig_changed(t.dev);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
                                  unsigned int *pending) {
    struct target t;
    NEED(current && pending);
    CHECK(find_gpu(device, &t));
    if (!t.m->profiles) return NVML_ERROR_NOT_SUPPORTED;
    *current = atomic_load(&t.d->mig_current);
    *pending = atomic_load(&t.d->mig_pending);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                 nvmlDevice_t *mig) {
    struct target t;
    NEED(mig);
    CHECK(find_gpu(device, &t));
    if (!t.m->profiles) return NVML_ERROR_NOT_SUPPORTED;
    NEED(index < 7);
    for (unsigned g = 0; g < SIM_MAX_INSTANCES; g++)
        for (unsigned c = 0; c < 8; c++)
            if (t.d->gi[g].ci[c].used && index-- == 0) {
                *mig = handle(t.dev, g, c);
                return NVML_SUCCESS;
            }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
    struct target t;
    NEED(device);
    CHECK(find(mig, &t));
    NEED(t.gi != SIM_WHOLE_GPU);
    *device = handle(t.dev, SIM_WHOLE_GPU, SIM_WHOLE_GPU);
    return NVML_SUCCESS;
}

// A handle of a MIG device.
static nvmlReturn_t find_mig(nvmlDevice_t h, struct target *t) {
    CHECK(find(h, t));
    return t->gi == SIM_WHOLE_GPU ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

FACT(nvmlDeviceIsMigDeviceHandle, unsigned int, find, t.gi != SIM_WHOLE_GPU)
FACT(nvmlDeviceGetMaxMigDeviceCount, unsigned int, find_gpu, t.m->profiles && atomic_load(&t.d->mig_current) ? 7 : 0)
FACT(nvmlDeviceGetGpuInstanceId, unsigned int, find_mig, t.gi)
FACT(nvmlDeviceGetComputeInstanceId, unsigned int, find_mig, t.ci)

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    struct target t;
    NEED(attributes);
    CHECK(find_mig(device, &t));
    const struct sim_profile *p = sim_profile_by_id(t.m, t.d->gi[t.gi].profile);
    if (!p) return NVML_ERROR_UNKNOWN;
    unsigned slices = t.d->gi[t.gi].ci[t.ci].slices;
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = p->sms * slices / p->slices,
        .sharedCopyEngineCount = p->copy,
        .sharedDecoderCount = p->decoders,
        .sharedJpegCount = p->jpegs,
        .sharedOfaCount = p->ofas,
        .gpuInstanceSliceCount = p->slices,
        .computeInstanceSliceCount = slices,
        .memorySizeMB = p->memory_mib,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    return nvmlDeviceGetAttributes_v2(device, attributes);
}
