// SPDX-License-Identifier: Apache-2.0
//
// How much contexts and modules take is the driver's secret. NVML says how much
// each process holds, so the difference to what the process is charged is it.
//
// Invariants:
//   1. A context is charged before it is created what the container's first one was
//      seen to take. That one is charged afterwards, and undone if it doesn't fit.
//      Where NVML doesn't know processes by their own numbers, each looks at its list
//      before and after its first context, or it couldn't measure its modules.
//   2. The difference is never too large: what other threads are about to
//      allocate is charged already. What it misses, the next one finds.
//      In a process with managed or imported memory, of which NVML may count less
//      or more than is charged, a module is what the difference has grown by.
//   3. Without NVML's word the charge stays as it was made.

#include "overhead.h"

// What contexts are known to take. `measured`: it isn't known, or this one is to be
// measured anyway if it is the process's first.
static uint64_t expected(const struct vgpu_process *process, int device, bool *unknown, bool *measured) {
    uint64_t seen = vgpu_load(&process->region.counters->header.device[device].context);
    *unknown = seen == 0;
    *measured = seen == 0 || (seen & VGPU_HOST_NUMBERS) != 0;
    return seen != 0 ? (seen & ~VGPU_HOST_NUMBERS) - 1 : 0;
}

// What NVML says that the process holds beyond what it is charged, the call's own
// charge aside; negative where managed memory lies elsewhere. False if NVML doesn't
// tell.
static bool beyond(const struct vgpu_call *call, int64_t *bytes) {
    uint64_t used, begun, held;
    if (!vgpu_own_memory(call->process, call->here.device, &used))
        return false;
    vgpu_read_held(call->process->region.slot, call->here.device, &begun, &held);
    *bytes = (int64_t)(used + call->charged) - ((int64_t)(held << 16) >> 16);
    return true;
}

// Whether there may be other things beyond the charge than the driver's own.
static bool is_mixed(struct vgpu_process *process) {
    return atomic_load(&process->managed) || atomic_load(&process->imports);
}

static uint64_t context_bytes(struct vgpu_call *call) {
    int64_t bytes;
    if (!beyond(call, &bytes))
        return call->charged;
    bytes = bytes > 0 ? bytes : 0;
    if (atomic_load(&call->process->managed) && (uint64_t)bytes < call->charged)
        return call->charged;
    if (atomic_load(&call->process->imports) && (uint64_t)bytes > call->charged)
        return call->charged;
    return (uint64_t)bytes;
}

struct vgpu_beside vgpu_module_begin(const struct vgpu_call *call) {
    struct vgpu_beside before = {.mixed = is_mixed(call->process)};
    before.unknown = before.mixed && !beyond(call, &before.bytes);
    return before;
}

uint64_t vgpu_module_bytes(const struct vgpu_call *call, struct vgpu_beside before) {
    int64_t bytes;
    if (before.unknown || before.mixed != is_mixed(call->process) || !beyond(call, &bytes))
        return 0;
    return bytes > before.bytes ? (uint64_t)(bytes - before.bytes) : 0;
}

cu_result vgpu_context_begin(struct vgpu_call *call, cu_device device) {
    bool unknown, measured;
    call->process = vgpu_process(&call->result);
    if (call->process == NULL)
        return call->result;
    call->here.device = -1;
    if (device < 0 || device >= call->process->device_count)
        return CU_OK;
    int index = vgpu_device_index(call->process, device);
    if (index < 0)
        return call->result = CU_NOT_PERMITTED;
    uint64_t bytes = expected(call->process, index, &unknown, &measured);
    if (measured && atomic_load(&call->process->contexts[index]) == 0)
        vgpu_own_memory_begin(call->process, index);
    return vgpu_begin_on(call, device, bytes);
}

bool vgpu_context_keep(struct vgpu_call *call, void *context) {
    bool unknown, measured, first;
    if (call->here.device < 0)
        return true;
    expected(call->process, call->here.device, &unknown, &measured);
    uint64_t bytes = call->charged;
    if (call->result == CU_OK) {
        vgpu_forget_contexts(); // one that has just gone may have had this handle
        first = atomic_fetch_add(&call->process->contexts[call->here.device], 1) == 0;
        if (measured || !first)
            bytes = context_bytes(call);
        if (unknown && first && vgpu_own_memory(call->process, call->here.device, &(uint64_t){0}))
            vgpu_store(&call->process->region.counters->header.device[call->here.device].context,
                       (bytes + 1) | (vgpu_has_host_number(call->process) ? VGPU_HOST_NUMBERS : 0));
    }
    call->here.ctx = context;
    bool ok = call->result == CU_OK;
    bool kept = vgpu_keep(call, vgpu_key(VGPU_CONTEXT, (uintptr_t)context), bytes);
    if (ok && !kept)
        atomic_fetch_sub(&call->process->contexts[call->here.device], 1);
    return kept || !ok;
}
