// SPDX-License-Identifier: Apache-2.0
//
// What NVML says that this process holds on a device.
//
// Invariants:
//   1. NVML is loaded and started with the first question, never before, and stays:
//      it counts its users, so the program's own use of it isn't touched.
//   2. Drivers that number processes as the host does know the process by a PID
//      that it doesn't have: then there is no answer.

#include "overhead.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define HEX4(b) (b)[0], (b)[1], (b)[2], (b)[3]

static nv_device open_device(const uint8_t *b) {
    char text[NV_UUID_CHARS];
    nv_device device = NULL;
    snprintf(text, sizeof text,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", HEX4(b),
             HEX4(b + 4), HEX4(b + 8), HEX4(b + 12));
    return VGPU_REAL(nvmlDeviceGetHandleByUUID)(text, &device) == NV_OK ? device : NULL;
}

// Under nvml_lock. NULL where NVML doesn't know the device.
static nv_device find_device(struct vgpu_process *process, int device) {
    if (!process->nvml_tried) {
        process->nvml_tried = true;
        process->nvml_good = vgpu_open("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL &&
                             VGPU_REAL(nvmlInit_v2)() == NV_OK;
    }
    if (process->nvml_good && process->nvml[device] == NULL)
        process->nvml[device] = open_device(process->limits.device[device].uuid);
    return process->nvml[device];
}

// The device's processes, to be freed; NULL if there are none to be had.
static struct nv_process_v2 *list(nv_device device, unsigned *count) {
    enum vgpu_hook hook = vgpu_has(VGPU_nvmlDeviceGetComputeRunningProcesses_v3)
                              ? VGPU_nvmlDeviceGetComputeRunningProcesses_v3
                              : VGPU_nvmlDeviceGetComputeRunningProcesses_v2;
    nv_result (*ask)(nv_device, unsigned *, struct nv_process_v2 *) = vgpu_real(hook);
    struct nv_process_v2 *processes = NULL;
    nv_result result = NV_INSUFFICIENT_SIZE;
    *count = 0;
    for (int attempt = 0; attempt < 4 && result == NV_INSUFFICIENT_SIZE; attempt++) {
        unsigned room = *count + 16; // some may come meanwhile
        struct nv_process_v2 *more = realloc(processes, room * sizeof *more);
        if (more == NULL)
            break;
        processes = more;
        *count = room;
        result = ask(device, count, processes);
    }
    if (result == NV_OK)
        return processes;
    free(processes);
    return NULL;
}

bool vgpu_own_memory(struct vgpu_process *process, int device, uint64_t *bytes) {
    unsigned count = 0;
    struct nv_process_v2 *processes = NULL;
    bool known = false;
    vgpu_lock(&process->nvml_lock);
    nv_device handle = find_device(process, device);
    if (handle != NULL)
        processes = list(handle, &count);
    vgpu_unlock(&process->nvml_lock);
    for (unsigned i = 0; processes != NULL && !known && i < count; i++) {
        known = processes[i].pid == (uint32_t)getpid() && processes[i].used != NV_VALUE_NOT_AVAILABLE;
        *bytes = processes[i].used;
    }
    free(processes);
    return known;
}
