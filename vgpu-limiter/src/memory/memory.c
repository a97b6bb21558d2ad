// SPDX-License-Identifier: Apache-2.0
//
// The pattern of every charged call.
//
// Invariants:
//   1. The driver is called only after the charge: what doesn't fit never
//      reaches the device.
//   2. Every charge is taken back exactly once: by the failed call, by the
//      release of its entry (only one thread can take an entry out), or with its
//      owner.

#include "memory/memory.h"

#include "memory/ipc_share.h"
#include "memory/pool.h"

bool vgpu_charge_after_all(struct vgpu_process *process, int device, uint64_t bytes) {
    if (process->pools.count != 0)
        vgpu_pools_trim(process, device);
    return vgpu_charge(process, device, bytes);
}

static cu_result charge(struct vgpu_call *call, uint64_t wanted) {
    uint64_t bytes = vgpu_round(wanted);
    call->charged = bytes;
    return vgpu_charge_or_trim(call->process, call->here.device, bytes) ? CU_OK : CU_OUT_OF_MEMORY;
}

cu_result vgpu_begin(struct vgpu_call *call, uint64_t bytes) {
    call->process = vgpu_process(&call->result);
    if (vgpu_unlikely(call->process == NULL))
        return call->result;
    call->result = vgpu_here(call->process, &call->here);
    if (vgpu_likely(call->result == CU_OK))
        call->result = charge(call, bytes);
    return call->result;
}

cu_result vgpu_begin_on(struct vgpu_call *call, cu_device device, uint64_t bytes) {
    call->process = vgpu_process(&call->result);
    if (call->process == NULL)
        return call->result;
    call->here.ctx = NULL;
    call->here.device = vgpu_device_index(call->process, device);
    call->result = call->here.device >= 0 ? charge(call, bytes) : CU_NOT_PERMITTED;
    return call->result;
}

cu_result vgpu_raise(struct vgpu_call *call, uint64_t bytes) {
    uint64_t before = call->charged;
    if (bytes <= before)
        return CU_OK;
    call->result = charge(call, bytes - before);
    if (call->result == CU_OK)
        call->charged += before;
    else
        vgpu_uncharge(call->process, call->here.device, before);
    return call->result;
}

// Makes the charge what the driver really took.
static bool correct(struct vgpu_call *call, uint64_t bytes) {
    if (bytes > call->charged) {
        if (!vgpu_charge_or_trim(call->process, call->here.device, bytes - call->charged))
            return false;
    } else {
        vgpu_uncharge(call->process, call->here.device, call->charged - bytes);
    }
    call->charged = bytes;
    return true;
}

void vgpu_uncharge_special(struct vgpu_process *process, const struct vgpu_entry *entry) {
    if ((entry->value & VGPU_BORROWED) != 0) {
        vgpu_import_end(process, (int)vgpu_value_bytes(entry->value));
        return;
    }
    bool pooled = (entry->value & VGPU_POOLED) != 0;
    if ((entry->value & VGPU_SHARED) != 0)
        vgpu_share_end(process, vgpu_value_record(entry->value), pooled);
    else if (!pooled)
        vgpu_uncharge(process, vgpu_value_device(entry->value), vgpu_value_bytes(entry->value));
}

// The driver has given out an address or handle again that went with a context,
// which it may be about to free still, or in a way that the library doesn't see.
static __attribute__((noinline, cold)) void replaced(struct vgpu_process *process,
                                                     const struct vgpu_entry *old) {
    if (((uintptr_t)old->owner & VGPU_DYING) != 0) {
        vgpu_lock(&process->contexts.dying_lock);
        vgpu_unlock(&process->contexts.dying_lock);
    }
    vgpu_uncharge_entry(process, old);
    if (vgpu_class_of(old->key) == VGPU_CONTEXT)
        atomic_fetch_sub(&process->contexts.count[vgpu_value_device(old->value)], 1);
}

bool vgpu_remember(struct vgpu_process *process, const struct vgpu_entry *entry) {
    struct vgpu_entry old;
    if (!vgpu_table_put(&process->table, entry, &old))
        return false;
    if (vgpu_unlikely(old.key != 0))
        replaced(process, &old);
    return true;
}

bool vgpu_commit(struct vgpu_call *call, uint64_t key, uint64_t bytes) {
    struct vgpu_process *process = call->process;
    bytes = vgpu_round(bytes);
    bool failed = vgpu_unlikely(call->result != CU_OK);
    if (!failed) {
        struct vgpu_entry entry = {key, vgpu_value(bytes, call->here.device), call->here.ctx};
        if (vgpu_likely((bytes == call->charged || correct(call, bytes)) &&
                        vgpu_remember(process, &entry)))
            return true;
        call->result = CU_OUT_OF_MEMORY;
    }
    vgpu_uncharge(process, call->here.device, call->charged);
    return failed;
}

void vgpu_release_begin(struct vgpu_release *release, uint64_t key) {
    cu_result why;
    release->process = vgpu_process(&why);
    if (release->process != NULL &&
        !vgpu_table_take(&release->process->table, key, &release->entry))
        release->process = NULL;
}

void vgpu_release_end(struct vgpu_release *release, cu_result result) {
    if (release->process == NULL)
        return;
    if (vgpu_likely(result == CU_OK))
        vgpu_uncharge_entry(release->process, &release->entry);
    else
        vgpu_remember(release->process, &release->entry);
}
