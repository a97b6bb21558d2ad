// SPDX-License-Identifier: Apache-2.0
//
// devices.c: handles and what a device is called.
//
// Invariants:
// - Only devices whose node this process may open are counted, indexed and
//   found; a device's index is its place among those, in PCI order.
// - A device that fell off the bus keeps its index and answers GPU_IS_LOST.
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static struct nvmlDevice_st whole[SIM_MAX_DEVICES];
static struct nvmlDevice_st instances[SIM_MAX_DEVICES][SIM_MAX_INSTANCES][8];

nvmlDevice_t handle(unsigned dev, unsigned gi, unsigned ci) {
    struct nvmlDevice_st *h = gi == SIM_WHOLE_GPU ? &whole[dev] : &instances[dev][gi][ci];
    *h = (struct nvmlDevice_st){dev, gi, ci};
    return (nvmlDevice_t){h};
}

static bool ours(const struct nvmlDevice_st *h) {
    const char *p = (const char *)h;
    return (p >= (const char *)whole && p < (const char *)whole + sizeof whole) ||
           (p >= (const char *)instances && p < (const char *)instances + sizeof instances);
}

nvmlReturn_t find(nvmlDevice_t h, struct target *t) {
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    if (mismatched(nv)) return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    NEED(h.handle && ours(h.handle) && h.handle->dev < nv->device_count);
    t->dev = h.handle->dev;
    t->gi = h.handle->gi;
    t->ci = h.handle->ci;
    t->d = &nv->devices[t->dev];
    t->m = sim_model(t->d->model);
    if (!t->m) return NVML_ERROR_UNKNOWN;
    if (atomic_load(&t->d->lost)) return NVML_ERROR_GPU_IS_LOST;
    if (t->gi != SIM_WHOLE_GPU && !t->d->gi[t->gi].ci[t->ci].used)
        return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
}

nvmlReturn_t find_gpu(nvmlDevice_t h, struct target *t) {
    CHECK(find(h, t));
    return t->gi == SIM_WHOLE_GPU ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    NEED(count);
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    if (mismatched(nv)) return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    *count = 0;
    for (unsigned d = 0; d < nv->device_count; d++) *count += sim_device_permitted(nv, d);
    return NVML_SUCCESS;
}

// give hands out a device's handle, unless the device is lost.
static nvmlReturn_t give(unsigned dev, nvmlDevice_t *device) {
    *device = handle(dev, SIM_WHOLE_GPU, SIM_WHOLE_GPU);
    return atomic_load(&nv->devices[dev].lost) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    NEED(device);
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    for (unsigned d = 0; d < nv->device_count; d++)
        if (sim_device_permitted(nv, d) && index-- == 0) return give(d, device);
    return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    struct target t;
    NEED(index);
    CHECK(find(device, &t));
    *index = 0;
    if (t.gi == SIM_WHOLE_GPU) {
        for (unsigned d = 0; d < t.dev; d++) *index += sim_device_permitted(nv, d);
        return NVML_SUCCESS;
    }
    for (unsigned g = 0; g < SIM_MAX_INSTANCES; g++)
        for (unsigned c = 0; c < 8; c++) {
            if (g == t.gi && c == t.ci) return NVML_SUCCESS;
            *index += t.d->gi[g].ci[c].used;
        }
    return NVML_ERROR_UNKNOWN;
}

static void uuid_of(const struct target *t, char *text, size_t len) {
    if (t->gi == SIM_WHOLE_GPU)
        sim_uuid_text(text, len, "GPU", t->d->uuid);
    else
        sim_uuid_text(text, len, "MIG", t->d->gi[t->gi].ci[t->ci].uuid);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    struct target t;
    char text[NVML_DEVICE_UUID_BUFFER_SIZE];
    NEED(uuid);
    CHECK(find(device, &t));
    uuid_of(&t, text, sizeof text);
    return copy_text(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    char text[NVML_DEVICE_UUID_BUFFER_SIZE];
    NEED(uuid && device);
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    for (unsigned d = 0; d < nv->device_count; d++) {
        if (!sim_device_permitted(nv, d)) continue;
        sim_uuid_text(text, sizeof text, "GPU", nv->devices[d].uuid);
        if (strcasecmp(text, uuid) == 0) return give(d, device);
        for (unsigned g = 0; g < SIM_MAX_INSTANCES; g++)
            for (unsigned c = 0; c < 8; c++) {
                struct sim_ci *ci = &nv->devices[d].gi[g].ci[c];
                if (!ci->used) continue;
                sim_uuid_text(text, sizeof text, "MIG", ci->uuid);
                if (strcasecmp(text, uuid) != 0) continue;
                *device = handle(d, g, c);
                return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
    NEED(uuid && device);
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    if (uuid->version != nvmlUUID_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (uuid->type == NVML_UUID_TYPE_ASCII) return nvmlDeviceGetHandleByUUID(uuid->value.str, device);
    if (uuid->type != NVML_UUID_TYPE_BINARY) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned d = 0; d < nv->device_count; d++)
        if (sim_device_permitted(nv, d) &&
            memcmp(uuid->value.bytes, nv->devices[d].uuid, sizeof nv->devices[d].uuid) == 0)
            return give(d, device);
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
    unsigned domain = 0, bus, slot, function;
    NEED(id && device);
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4 &&
        sscanf(id, "%x:%x.%x", &bus, &slot, &function) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned d = 0; d < nv->device_count; d++)
        if (nv->devices[d].domain == domain && nv->devices[d].bus == bus && slot == 0 &&
            sim_device_permitted(nv, d))
            return give(d, device);
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    struct target t;
    char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    CHECK(find(device, &t));
    snprintf(text, sizeof text, "%s", t.m->name);
    if (t.gi != SIM_WHOLE_GPU) {
        const struct sim_profile *p = sim_profile_by_id(t.m, t.d->gi[t.gi].profile);
        if (p) snprintf(text, sizeof text, "%s %s", t.m->name, p->name);
    }
    return copy_text(name, length, text);
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}
