// SPDX-License-Identifier: Apache-2.0
//
// NVML's list of devices: those of the limits. In a container these are all that its device
// nodes let NVML see; under vgpu-run --device the machine's others are hidden.
//
// Invariants:
//   1. The driver is asked first: its errors stand.
//   2. Indices count the devices shown, in the driver's order, without gaps.

#include "nvml.h"

// Counts the devices shown before the driver's index end, and stores the one with the shown
// index wanted in *found.
static nv_result shown_before(unsigned end, unsigned wanted, unsigned *count, nv_device *found) {
    *count = 0;
    *found = NULL;
    for (unsigned i = 0; i < end; i++) {
        nv_device device;
        struct vgpu_slice slice;
        if (VGPU_REAL(nvmlDeviceGetHandleByIndex_v2)(i, &device) != NV_OK)
            continue; // lost: its UUID, and so whether it is shown, is unknown
        nv_result result = vgpu_slice_find(device, &slice);
        if (result != NV_OK && slice.view == NULL)
            return result;
        if (result == NV_OK && (*count)++ == wanted)
            *found = device;
    }
    return NV_OK;
}

static nv_result count_shown(enum vgpu_hook hook, unsigned *count) {
    nv_device found;
    nv_result (*real)(unsigned *) = vgpu_real(hook);
    nv_result result = real(count);
    return result != NV_OK ? result : shown_before(*count, UINT32_MAX, count, &found);
}

nv_result nvmlDeviceGetCount(unsigned *count) { return count_shown(VGPU_nvmlDeviceGetCount, count); }
nv_result nvmlDeviceGetCount_v2(unsigned *count) { return count_shown(VGPU_nvmlDeviceGetCount_v2, count); }

static nv_result by_index(enum vgpu_hook hook, unsigned index, nv_device *device) {
    nv_result (*real)(unsigned, nv_device *) = vgpu_real(hook);
    nv_result result = real(index, device), looked;
    unsigned end = 0, count;
    nv_device found = NULL;
    if (device == NULL || VGPU_REAL(nvmlDeviceGetCount_v2)(&end) != NV_OK)
        return result;
    looked = shown_before(end, index, &count, &found);
    *device = found;
    if (found != NULL || looked != NV_OK)
        return looked;
    return result != NV_OK ? result : NV_INVALID_ARGUMENT;
}

nv_result nvmlDeviceGetHandleByIndex(unsigned index, nv_device *device) {
    return by_index(VGPU_nvmlDeviceGetHandleByIndex, index, device);
}
nv_result nvmlDeviceGetHandleByIndex_v2(unsigned index, nv_device *device) {
    return by_index(VGPU_nvmlDeviceGetHandleByIndex_v2, index, device);
}

nv_result nvmlDeviceGetIndex(nv_device device, unsigned *index) {
    struct vgpu_slice slice;
    nv_device none;
    nv_result result = VGPU_REAL(nvmlDeviceGetIndex)(device, index);
    if (result != NV_OK || vgpu_slice_find(device, &slice) != NV_OK)
        return result; // of an instance of MIG: it counts those of its GPU
    return shown_before(*index, UINT32_MAX, index, &none);
}

// Hides a device that was found by its name, if it isn't one of the limits.
static nv_result named(nv_result result, nv_device *device) {
    struct vgpu_slice slice;
    if (result != NV_OK || (result = vgpu_slice_find(*device, &slice)) == NV_OK)
        return result;
    *device = NULL;
    return slice.view != NULL ? NV_NOT_FOUND : result;
}

nv_result nvmlDeviceGetHandleByUUID(const char *uuid, nv_device *device) {
    return named(VGPU_REAL(nvmlDeviceGetHandleByUUID)(uuid, device), device);
}
nv_result nvmlDeviceGetHandleByUUIDV(const void *uuid, nv_device *device) {
    return named(VGPU_REAL(nvmlDeviceGetHandleByUUIDV)(uuid, device), device);
}
nv_result nvmlDeviceGetHandleBySerial(const char *serial, nv_device *device) {
    return named(VGPU_REAL(nvmlDeviceGetHandleBySerial)(serial, device), device);
}
nv_result nvmlDeviceGetHandleByPciBusId(const char *id, nv_device *device) {
    return named(VGPU_REAL(nvmlDeviceGetHandleByPciBusId)(id, device), device);
}
nv_result nvmlDeviceGetHandleByPciBusId_v2(const char *id, nv_device *device) {
    return named(VGPU_REAL(nvmlDeviceGetHandleByPciBusId_v2)(id, device), device);
}
