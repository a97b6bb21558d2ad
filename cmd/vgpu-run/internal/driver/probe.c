// SPDX-License-Identifier: Apache-2.0
//
// Invariant: nothing of the driver is linked, so that a machine without one gets
// a sentence, not a loader's error.

#include "probe.h"

#include <dlfcn.h>
#include <stdio.h>

#define REMEDY "; install the NVIDIA driver, or set LD_LIBRARY_PATH to where libcuda.so.1 is"

static int (*get_uuid)(void *uuid, int device);
static int (*total_mem)(size_t *bytes, int device);

static int ask(struct vgpu_probe_device *device, int (*device_get)(int *, int), int index) {
    int handle;
    size_t bytes = 0;
    int result = device_get(&handle, index);
    if (result == 0)
        result = get_uuid(device->uuid, handle);
    if (result == 0)
        result = total_mem(&bytes, handle);
    device->memory = bytes;
    return result;
}

int vgpu_probe(struct vgpu_probe_device *devices, char *text, size_t text_bytes) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (cuda == NULL) {
        snprintf(text, text_bytes, "no CUDA driver: %s" REMEDY, dlerror());
        return -1;
    }
    // Casts by way of the object's address: ISO C has none from void * to functions.
    int (*init)(unsigned), (*count)(int *), (*device_get)(int *, int);
    *(void **)&init = dlsym(cuda, "cuInit");
    *(void **)&count = dlsym(cuda, "cuDeviceGetCount");
    *(void **)&device_get = dlsym(cuda, "cuDeviceGet");
    *(void **)&total_mem = dlsym(cuda, "cuDeviceTotalMem_v2");
    *(void **)&get_uuid = dlsym(cuda, "cuDeviceGetUuid_v2");
    if (get_uuid == NULL)
        *(void **)&get_uuid = dlsym(cuda, "cuDeviceGetUuid");
    if (!init || !count || !device_get || !total_mem || !get_uuid) {
        snprintf(text, text_bytes, "libcuda.so.1 lacks cuInit, cuDeviceGetCount, cuDeviceGet, "
                                   "cuDeviceTotalMem_v2 or cuDeviceGetUuid" REMEDY);
        return -1;
    }
    int n = 0, result = init(0);
    if (result == 0)
        result = count(&n);
    if (n > VGPU_PROBE_DEVICES)
        n = VGPU_PROBE_DEVICES;
    for (int i = 0; result == 0 && i < n; i++)
        result = ask(&devices[i], device_get, i);
    if (result == 0 && n > 0)
        return n;
    snprintf(text, text_bytes, "the CUDA driver shows no devices (error %d); see whether nvidia-smi does", result);
    return -1;
}
