// SPDX-License-Identifier: Apache-2.0
//
// What NVML says that this process holds on a device.
//
// Invariants:
//   1. NVML is loaded and started with the first question, never before, and stays:
//      it counts its users, so the program's own use of it isn't touched. Where it can't
//      be, for want of descriptors or memory perhaps, the next few questions try again.
//   2. Some drivers number processes as the host does: such a one knows the process
//      by a PID that it doesn't have. It is the only one that is there after its
//      first context and wasn't before; where several are, there is no answer.

#include "memory/own_memory.h"

#include "runtime/limits.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#define TRIES 16 // each takes as long as looking for a library that isn't there

static nv_device open_device(const uint8_t *uuid) {
    char text[NV_UUID_CHARS];
    nv_device device = NULL;
    vgpu_uuid_text(uuid, text, sizeof text);
    return VGPU_REAL(nvmlDeviceGetHandleByUUID)(text, &device) == NV_OK ? device : NULL;
}

// Under nvml.lock. NULL where NVML doesn't know the device.
static nv_device find_device(struct vgpu_process *process, int device) {
    if (!process->nvml.good && process->nvml.tries < TRIES) {
        process->nvml.tries++;
        struct vgpu_low low;
        vgpu_low_hold(&low);
        process->nvml.good = vgpu_open("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL &&
                             VGPU_REAL(nvmlInit_v2)() == NV_OK;
        vgpu_low_free(&low);
    }
    if (process->nvml.good && process->nvml.device[device] == NULL)
        process->nvml.device[device] = open_device(process->limits.device[device].uuid);
    return process->nvml.device[device];
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
        unsigned room = *count + 16; // some may come until it is asked
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

bool vgpu_can_measure(struct vgpu_process *process, int device) {
    vgpu_lock(&process->nvml.lock);
    bool can = find_device(process, device) != NULL;
    vgpu_unlock(&process->nvml.lock);
    return can;
}

void vgpu_own_memory_begin(struct vgpu_process *process, int device) {
    vgpu_lock(&process->nvml.lock);
    nv_device handle = process->nvml.pid == 0 ? find_device(process, device) : NULL;
    if (handle != NULL && process->nvml.strangers[device] == NULL)
        process->nvml.strangers[device] = list(handle, &process->nvml.stranger_count[device]);
    vgpu_unlock(&process->nvml.lock);
}

bool vgpu_has_host_number(struct vgpu_process *process) {
    vgpu_lock(&process->nvml.lock);
    uint32_t number = process->nvml.pid;
    vgpu_unlock(&process->nvml.lock);
    return number != 0 && number != (uint32_t)getpid();
}

static bool is_among(const struct nv_process_v2 *processes, unsigned count, uint32_t pid) {
    for (unsigned i = 0; processes != NULL && i < count; i++)
        if (processes[i].pid == pid)
            return true;
    return false;
}

// Under nvml.lock. Finds out by which PID NVML knows this process, from a list that
// has it.
static void know_pid(struct vgpu_process *process, int device, const struct nv_process_v2 *processes,
                     unsigned count) {
    const struct nv_process_v2 *strangers = process->nvml.strangers[device];
    unsigned stranger_count = process->nvml.stranger_count[device], new = 0;
    uint32_t found = 0;
    for (unsigned i = 0; i < count; i++)
        if (!is_among(strangers, stranger_count, processes[i].pid)) {
            found = processes[i].pid;
            new++;
        }
    uint32_t own = (uint32_t)getpid();
    if (is_among(processes, count, own) && !is_among(strangers, stranger_count, own))
        process->nvml.pid = own;
    else if (strangers != NULL && new == 1)
        process->nvml.pid = found;
}

bool vgpu_own_memory(struct vgpu_process *process, int device, uint64_t *bytes) {
    unsigned count = 0;
    struct nv_process_v2 *processes = NULL;
    bool known = false;
    vgpu_lock(&process->nvml.lock);
    nv_device handle = find_device(process, device);
    if (handle != NULL)
        processes = list(handle, &count);
    if (processes != NULL && process->nvml.pid == 0)
        know_pid(process, device, processes, count);
    free(process->nvml.strangers[device]);
    process->nvml.strangers[device] = NULL;
    for (unsigned i = 0; processes != NULL && !known && i < count; i++) {
        known = processes[i].pid == process->nvml.pid && processes[i].used != NV_VALUE_NOT_AVAILABLE;
        *bytes = processes[i].used;
    }
    vgpu_unlock(&process->nvml.lock);
    free(processes);
    return known;
}
