// SPDX-License-Identifier: Apache-2.0
//
// How much contexts and modules take is the driver's secret. NVML says how much
// each process holds, so the difference to what the process is charged is it.
//
// Invariants:
//   1. A context is charged before it is created: what the container's first one
//      was seen to take or, before there was one, what the limits say.
//   2. The difference is never too large: what other threads are about to
//      allocate is charged already. What it misses, the next one finds.
//   3. Without NVML's word the charge stays as it was made.

#include "overhead.h"

// What contexts are known to take; where nothing is known, measured is true.
static uint64_t expected(const struct vgpu_process *process, int device, bool *unknown) {
    uint64_t seen = vgpu_load(&process->region.counters->header.device[device].context);
    *unknown = seen == 0;
    return seen != 0 ? seen - 1 : (uint64_t)process->limits.device[device].context_mib << 20;
}

uint64_t vgpu_overhead(struct vgpu_call *call) {
    struct vgpu_process *process = call->process;
    const uint64_t *held = &process->region.slot->device[call->here.device].held;
    uint64_t used, bytes;
    if (!vgpu_own_memory(process, call->here.device, &used))
        return call->charged;
    bytes = (vgpu_load(held) & VGPU_BYTES_MASK) - call->charged;
    bytes = used > bytes ? used - bytes : 0;
    // Managed memory may lie elsewhere, and the memory of others may be counted.
    if (atomic_load(&process->managed) && bytes < call->charged)
        return call->charged;
    if (atomic_load(&process->imports) && bytes > call->charged)
        return call->charged;
    return bytes;
}

cu_result vgpu_context_begin(struct vgpu_call *call, cu_device device) {
    bool unknown;
    call->process = vgpu_process(&call->result);
    if (call->process == NULL)
        return call->result;
    call->here.device = -1;
    if (device < 0 || device >= call->process->device_count)
        return CU_OK;
    int index = vgpu_device_index(call->process, device);
    if (index < 0)
        return call->result = CU_NOT_PERMITTED;
    return vgpu_begin_on(call, device, expected(call->process, index, &unknown));
}

bool vgpu_context_keep(struct vgpu_call *call, void *context) {
    bool unknown, first;
    if (call->here.device < 0)
        return true;
    expected(call->process, call->here.device, &unknown);
    uint64_t bytes = call->charged;
    if (call->result == CU_OK) {
        first = atomic_fetch_add(&call->process->contexts[call->here.device], 1) == 0;
        if (unknown || !first)
            bytes = vgpu_overhead(call);
        if (unknown && first && vgpu_own_memory(call->process, call->here.device, &(uint64_t){0}))
            vgpu_store(&call->process->region.counters->header.device[call->here.device].context,
                       bytes + 1);
    }
    call->here.ctx = context;
    bool ok = call->result == CU_OK;
    bool kept = vgpu_keep(call, vgpu_key(VGPU_CONTEXT, (uintptr_t)context), bytes);
    if (ok && !kept)
        atomic_fetch_sub(&call->process->contexts[call->here.device], 1);
    return kept || !ok;
}
