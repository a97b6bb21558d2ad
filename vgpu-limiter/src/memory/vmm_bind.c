// SPDX-License-Identifier: Apache-2.0
//
// Memory made by cuMemCreate under multicast objects, which keep it as mappings do:
// until it is unbound, or the object goes with its last handle and mapping. An object
// that was exported, or comes from elsewhere, may be kept by others: what is bound to
// it and not unbound stays charged until the process ends.
//
// Invariant: the driver's binding is called without a lock: it waits until the object has all
// its devices, which other threads add. Until it has returned, the memory counts as mapped.

#include "memory/ipc_share.h"
#include "memory/vmm.h"

#include <stdlib.h>

// What a multicast object has at an offset of one device's memory.
static uint64_t id_of(const struct vgpu_record *record, int device, cu_handle object, size_t at) {
    uint64_t named[] = {object, at, (uint64_t)(record != NULL ? record->device : device)};
    return vgpu_share_id(named, sizeof named) >> 4;
}

cu_result cuMulticastCreate(cu_handle *handle, const void *prop) {
    VGPU_PROCESS(process);
    struct vgpu_record *object = calloc(1, sizeof *object);
    vgpu_lock(&process->vmm.lock);
    cu_result result = object != NULL ? VGPU_REAL(cuMulticastCreate)(handle, prop) : CU_OUT_OF_MEMORY;
    if (result == CU_OK) {
        *object = (struct vgpu_record){.device = -1, .handles = 1, .shared = -1, .borrowed = -1};
        if (vgpu_record_refer(process, VGPU_HANDLE, *handle, object))
            object = NULL; // what is bound to one that isn't known stays charged
    }
    vgpu_unlock(&process->vmm.lock);
    free(object);
    return result;
}

// The forms differ in their arguments only.
#define BIND(find, object, at, ...)                           \
    do {                                                      \
        VGPU_PROCESS(process);                                \
        vgpu_lock(&process->vmm.lock);                        \
        struct vgpu_record *record = find;                    \
        if (record != NULL)                                   \
            record->mappings++;                               \
        vgpu_unlock(&process->vmm.lock);                      \
        cu_result result = __VA_ARGS__;                       \
        if (record == NULL)                                   \
            return result;                                    \
        vgpu_lock(&process->vmm.lock);                        \
        if (result == CU_OK) {                                \
            vgpu_bind(process, record, vgpu_record_of(process, object), id_of(record, -1, object, at)); \
        } else {                                              \
            record->mappings--;                               \
            vgpu_record_drop(process, record);                \
        }                                                     \
        vgpu_unlock(&process->vmm.lock);                      \
        return result;                                        \
    } while (0)

static struct vgpu_record *behind(struct vgpu_process *process, cu_ptr ptr) {
    struct vgpu_mapping *mapping = vgpu_mapping_around(process, ptr);
    return mapping != NULL ? mapping->record : NULL;
}

cu_result cuMulticastBindMem(cu_handle object, size_t at, cu_handle memory, size_t offset,
                             size_t bytes, unsigned long long flags) {
    BIND(vgpu_record_of(process, memory), object, at,
         VGPU_REAL(cuMulticastBindMem)(object, at, memory, offset, bytes, flags));
}
cu_result cuMulticastBindMem_v2(cu_handle object, cu_device device, size_t at, cu_handle memory,
                                size_t offset, size_t bytes, unsigned long long flags) {
    BIND(vgpu_record_of(process, memory), object, at,
         VGPU_REAL(cuMulticastBindMem_v2)(object, device, at, memory, offset, bytes, flags));
}
cu_result cuMulticastBindAddr(cu_handle object, size_t at, cu_ptr ptr, size_t bytes,
                              unsigned long long flags) {
    BIND(behind(process, ptr), object, at,
         VGPU_REAL(cuMulticastBindAddr)(object, at, ptr, bytes, flags));
}
cu_result cuMulticastBindAddr_v2(cu_handle object, cu_device device, size_t at, cu_ptr ptr,
                                 size_t bytes, unsigned long long flags) {
    BIND(behind(process, ptr), object, at,
         VGPU_REAL(cuMulticastBindAddr_v2)(object, device, at, ptr, bytes, flags));
}

cu_result cuMulticastUnbind(cu_handle object, cu_device device, size_t at, size_t bytes) {
    VGPU_PROCESS(process);
    struct vgpu_entry entry;
    int index = device >= 0 && device < VGPU_ORDINALS ? process->index[device] : -1;
    vgpu_lock(&process->vmm.lock);
    cu_result result = VGPU_REAL(cuMulticastUnbind)(object, device, at, bytes);
    if (result == CU_OK &&
        vgpu_table_take(&process->table, vgpu_key(VGPU_BOUND, id_of(NULL, index, object, at)), &entry))
        vgpu_unbind(process, (struct vgpu_binding *)(uintptr_t)entry.value);
    vgpu_unlock(&process->vmm.lock);
    return result;
}
