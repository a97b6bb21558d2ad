// SPDX-License-Identifier: Apache-2.0
//
// cuInit, and what CUDA says about the device's memory.
//
// Invariant: used never exceeds total, whatever the counters say.

#include "memory/ipc_share.h"
#include "memory/memory.h"
#include "memory/pool.h"

// The limits are read before the driver starts: a program that is refused has
// started nothing that it could go on with.
cu_result cuInit(unsigned flags) {
    cu_result result = vgpu_attach_begin();
    if (result == CU_OK)
        result = VGPU_REAL(cuInit)(flags);
    if (result == CU_OK)
        vgpu_process(&result);
    return result;
}

cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device) {
    VGPU_PROCESS(process);
    cu_result result = VGPU_REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (result != CU_OK)
        return result;
    int index = vgpu_device_index(process, device);
    if (index < 0)
        return CU_NOT_PERMITTED;
    uint64_t limit = vgpu_memory_limit(&process->limits, process->pace, index, vgpu_total(process, index));
    if (*bytes > limit)
        *bytes = limit;
    return CU_OK;
}

cu_result cuMemGetInfo_v2(size_t *free, size_t *total) {
    struct vgpu_here here;
    cu_result result;
    struct vgpu_process *process = vgpu_process(&result);
    if (process == NULL || (result = vgpu_here(process, &here)) != CU_OK)
        return result;
    if (free == NULL || total == NULL)
        return CU_INVALID_VALUE;
    if (!vgpu_audit_sometimes(process) &&
        vgpu_unlikely(atomic_load_explicit(&process->sharing.left, memory_order_relaxed)) && vgpu_share_look(process))
        vgpu_audit(process, true);
    if (process->pools.count != 0)
        vgpu_refresh_pools(process);
    uint64_t charged = vgpu_total(process, here.device), used = charged & VGPU_BYTES_MASK;
    uint64_t limit = vgpu_memory_limit(&process->limits, process->pace, here.device, charged);
    *total = limit;
    *free = used < limit ? limit - used : 0;
    return CU_OK;
}
