// SPDX-License-Identifier: Apache-2.0
//
// NVML's lists of how busy each process was: of the container's own processes
// only. The percentages are of the device, as the driver says.
//
// Invariant: the driver's list is only shortened, in place; its errors and the
// counts that it asks room for stand.

#include "nvml/nvml.h"

// Moves the container's own to the front of a list and returns how many they are.
static unsigned keep_own(const struct vgpu_slice *slice, void *list, unsigned count, size_t size,
                         size_t pid_at) {
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++) {
        char *entry = (char *)list + i * size;
        uint32_t pid;
        memcpy(&pid, entry + pid_at, sizeof pid);
        if (vgpu_slice_has(slice, pid))
            memmove((char *)list + kept++ * size, entry, size);
    }
    return kept;
}

nv_result nvmlDeviceGetProcessUtilization(nv_device device, struct nv_sample *samples,
                                          unsigned *count, unsigned long long since) {
    struct vgpu_slice slice;
    nv_result result = VGPU_REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, since);
    if (result != NV_OK || samples == NULL)
        return result;
    if ((result = vgpu_slice_find(device, &slice)) != NV_OK) {
        *count = 0;
        return result;
    }
    *count = keep_own(&slice, samples, *count, sizeof *samples, offsetof(struct nv_sample, pid));
    return *count != 0 ? NV_OK : NV_NOT_FOUND;
}

nv_result nvmlDeviceGetProcessesUtilizationInfo(nv_device device, struct nv_busy_list *list) {
    struct vgpu_slice slice;
    nv_result result = VGPU_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, list);
    if (result != NV_OK || list->processes == NULL)
        return result;
    if ((result = vgpu_slice_find(device, &slice)) != NV_OK) {
        list->count = 0;
        return result;
    }
    list->count = keep_own(&slice, list->processes, list->count, sizeof *list->processes,
                           offsetof(struct nv_busy, pid));
    return list->count != 0 ? NV_OK : NV_NOT_FOUND;
}
