// SPDX-License-Identifier: Apache-2.0
//
// Memory made by cuMemCreate under multicast objects, which keep it as mappings do.

#include "vmm.h"

// What a multicast object has at an offset of one device's memory.
static uint64_t binding(const struct vgpu_record *record, int device, cu_handle object, size_t at) {
    uint64_t named[] = {object, at, (uint64_t)(record != NULL ? record->device : device)};
    return vgpu_share_id(named, sizeof named) >> 4;
}

// The forms differ in their arguments only.
#define BIND(find, object, at, ...)                                                            \
    do {                                                                                       \
        cu_result result;                                                                      \
        struct vgpu_process *process = vgpu_process(&result);                                  \
        if (process == NULL)                                                                   \
            return result;                                                                     \
        vgpu_lock(&process->vmm_lock);                                                         \
        struct vgpu_record *record = find;                                                     \
        result = __VA_ARGS__;                                                                  \
        if (result == CU_OK && record != NULL) {                                               \
            record->mappings++; /* without memory to remember it: until the process ends */    \
            vgpu_record_refer(process, VGPU_BOUND, binding(record, -1, object, at), record);   \
        }                                                                                      \
        vgpu_unlock(&process->vmm_lock);                                                       \
        return result;                                                                         \
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
    cu_result result;
    struct vgpu_process *process = vgpu_process(&result);
    struct vgpu_entry entry;
    if (process == NULL)
        return result;
    int index = device >= 0 && device < VGPU_ORDINALS ? process->index[device] : -1;
    vgpu_lock(&process->vmm_lock);
    result = VGPU_REAL(cuMulticastUnbind)(object, device, at, bytes);
    if (result == CU_OK &&
        vgpu_table_take(&process->memory, vgpu_key(VGPU_BOUND, binding(NULL, index, object, at)), &entry)) {
        struct vgpu_record *record = (struct vgpu_record *)(uintptr_t)entry.value;
        record->mappings--;
        vgpu_record_drop(process, record);
    }
    vgpu_unlock(&process->vmm_lock);
    return result;
}
