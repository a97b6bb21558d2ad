// SPDX-License-Identifier: Apache-2.0
//
// NVML's list of devices: those of the limits. In a container these are all that its device
// nodes let NVML see; under vgpu-run --device the machine's others are hidden.
//
// Invariants:
//   1. The driver is asked first: its errors stand.
//   2. Indices count the devices shown, in the driver's order, without gaps.
//   3. Without valid limits every device is shown: each view of one is refused.

#include "nvml/nvml.h"

static bool is_hidden(nv_device device) {
    struct vgpu_slice slice;
    return vgpu_slice_find(device, &slice) != NV_OK && slice.view != NULL;
}

// Counts the devices shown before the driver's index end. The answer for the one with the
// shown index wanted is in *found and *result, which stay as they are if there is none.
static unsigned shown_before(unsigned end, unsigned wanted, nv_device *found, nv_result *result) {
    unsigned count = 0;
    for (unsigned i = 0; i < end; i++) {
        nv_device device = NULL;
        nv_result answer = VGPU_REAL(nvmlDeviceGetHandleByIndex_v2)(i, &device);
        if (answer == NV_OK && is_hidden(device))
            continue; // one that is lost has no UUID: it is shown
        if (count++ == wanted) {
            *found = device;
            *result = answer;
        }
    }
    return count;
}

static nv_result count_shown(enum vgpu_hook hook, unsigned *count) {
    nv_result (*real)(unsigned *) = vgpu_real(hook);
    nv_result result = real(count);
    if (result == NV_OK)
        *count = shown_before(*count, UINT32_MAX, NULL, NULL);
    return result;
}

nv_result nvmlDeviceGetCount(unsigned *count) { return count_shown(VGPU_nvmlDeviceGetCount, count); }
nv_result nvmlDeviceGetCount_v2(unsigned *count) { return count_shown(VGPU_nvmlDeviceGetCount_v2, count); }

static nv_result by_index(enum vgpu_hook hook, unsigned index, nv_device *device) {
    nv_result (*real)(unsigned, nv_device *) = vgpu_real(hook);
    nv_result result = real(index, device);
    unsigned end = 0;
    if (device == NULL || VGPU_REAL(nvmlDeviceGetCount_v2)(&end) != NV_OK)
        return result;
    *device = NULL;
    result = NV_INVALID_ARGUMENT;
    shown_before(end, index, device, &result);
    return result;
}

nv_result nvmlDeviceGetHandleByIndex(unsigned index, nv_device *device) {
    return by_index(VGPU_nvmlDeviceGetHandleByIndex, index, device);
}
nv_result nvmlDeviceGetHandleByIndex_v2(unsigned index, nv_device *device) {
    return by_index(VGPU_nvmlDeviceGetHandleByIndex_v2, index, device);
}

nv_result nvmlDeviceGetIndex(nv_device device, unsigned *index) {
    nv_result result = VGPU_REAL(nvmlDeviceGetIndex)(device, index);
    if (result == NV_OK && !is_hidden(device)) // an instance of MIG counts those of its GPU
        *index = shown_before(*index, UINT32_MAX, NULL, NULL);
    return result;
}

// Hides a device that was found by its name.
static nv_result named(nv_result result, nv_device *device) {
    if (result != NV_OK || !is_hidden(*device))
        return result;
    *device = NULL;
    return NV_NOT_FOUND;
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
