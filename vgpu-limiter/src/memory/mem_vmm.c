// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: memory made by cuMemCreate.
//
// Invariants:
//   1. Memory is charged from before cuMemCreate until neither a handle nor a
//      mapping refers to it, nor a descriptor (ipc_share.c): create, map, release leaves
//      it charged.
//   2. A mapping refers to the record, not to the handle, whose number the driver
//      may give to other memory once it is released.
//   3. vmm.lock is held across these calls of the driver, so that the counts and
//      the driver's own never part, and no thread is given the number of a handle
//      that another one is about to forget. They are rare and slow; the driver has
//      a lock of its own around them. The exception are bindings (vmm_bind.c).

#include "memory/vmm.h"

#include <stdlib.h>

cu_result cuMemCreate(cu_handle *handle, size_t bytes, const struct cu_alloc_prop *prop,
                      unsigned long long flags) {
    if (prop == NULL || prop->location.type != CU_LOCATION_DEVICE) // host memory, or an error
        return VGPU_REAL(cuMemCreate)(handle, bytes, prop, flags);
    struct vgpu_call call;
    if (vgpu_begin_on(&call, prop->location.id, bytes) != CU_OK)
        return call.result;
    struct vgpu_record *record = malloc(sizeof *record);
    vgpu_lock(&call.process->vmm.lock);
    call.result = record != NULL ? VGPU_REAL(cuMemCreate)(handle, bytes, prop, flags)
                                 : CU_OUT_OF_MEMORY;
    if (call.result == CU_OK) {
        *record = (struct vgpu_record){.bytes = call.charged, .device = call.here.device, .handles = 1,
                                  .shared = -1, .borrowed = -1};
        if (!vgpu_record_refer(call.process, VGPU_HANDLE, *handle, record)) {
            VGPU_REAL(cuMemRelease)(*handle);
            call.result = CU_OUT_OF_MEMORY;
        }
    }
    vgpu_unlock(&call.process->vmm.lock);
    if (call.result == CU_OK)
        return CU_OK;
    vgpu_uncharge(call.process, call.here.device, call.charged);
    free(record);
    return call.result;
}

cu_result cuMemRelease(cu_handle handle) {
    VGPU_PROCESS(process);
    vgpu_lock(&process->vmm.lock);
    struct vgpu_record *record = vgpu_record_of(process, handle);
    cu_result result = VGPU_REAL(cuMemRelease)(handle);
    if (result == CU_OK && record != NULL) {
        struct vgpu_entry entry;
        if (--record->handles == 0)
            vgpu_table_take(&process->table, vgpu_key(VGPU_HANDLE, handle), &entry);
        vgpu_record_drop(process, record);
    }
    vgpu_unlock(&process->vmm.lock);
    return result;
}

// Remembers a mapping that the driver has made.
static bool add_mapping(struct vgpu_process *process, struct vgpu_mapping *mapping) {
    if (!vgpu_record_refer(process, VGPU_MAPPING, mapping->ptr, mapping))
        return false;
    mapping->record->mappings++;
    LIST_INSERT_HEAD(&process->vmm.mappings, mapping, link);
    return true;
}

cu_result cuMemMap(cu_ptr ptr, size_t bytes, size_t offset, cu_handle handle,
                   unsigned long long flags) {
    VGPU_PROCESS(process);
    struct vgpu_mapping *mapping = malloc(sizeof *mapping);
    if (mapping == NULL)
        return CU_OUT_OF_MEMORY;
    vgpu_lock(&process->vmm.lock);
    struct vgpu_record *record = vgpu_record_of(process, handle), *stranger = NULL;
    if (record == NULL) // host memory, or imported: known by its mapping only
        record = stranger = calloc(1, sizeof *stranger);
    cu_result result = CU_OUT_OF_MEMORY;
    if (record != NULL) {
        if (stranger != NULL)
            stranger->device = stranger->shared = stranger->borrowed = -1;
        *mapping = (struct vgpu_mapping){.ptr = ptr, .bytes = bytes, .record = record};
        if (vgpu_record_reach(process, record, offset, bytes))
            result = VGPU_REAL(cuMemMap)(ptr, bytes, offset, handle, flags);
        if (result == CU_OK && !add_mapping(process, mapping)) {
            VGPU_REAL(cuMemUnmap)(ptr, bytes);
            result = CU_OUT_OF_MEMORY;
        }
    }
    if (result != CU_OK) {
        free(mapping);
        free(stranger);
    }
    vgpu_unlock(&process->vmm.lock);
    return result;
}

// The driver only unmaps whole mappings, one or several in a row.
cu_result cuMemUnmap(cu_ptr ptr, size_t bytes) {
    VGPU_PROCESS(process);
    vgpu_lock(&process->vmm.lock);
    cu_result result = VGPU_REAL(cuMemUnmap)(ptr, bytes);
    struct vgpu_entry entry;
    for (cu_ptr at = ptr; result == CU_OK && at - ptr < bytes;) {
        if (!vgpu_table_take(&process->table, vgpu_key(VGPU_MAPPING, at), &entry))
            break;
        struct vgpu_mapping *mapping = (struct vgpu_mapping *)(uintptr_t)entry.value;
        LIST_REMOVE(mapping, link);
        at += mapping->bytes;
        mapping->record->mappings--;
        vgpu_record_drop(process, mapping->record);
        free(mapping);
    }
    vgpu_unlock(&process->vmm.lock);
    return result;
}

// A handle for the memory behind an address, which may have none left.
cu_result cuMemRetainAllocationHandle(cu_handle *handle, void *address) {
    VGPU_PROCESS(process);
    vgpu_lock(&process->vmm.lock);
    cu_result result = VGPU_REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CU_OK) {
        struct vgpu_mapping *mapping = vgpu_mapping_around(process, (uintptr_t)address);
        struct vgpu_record *record = vgpu_record_of(process, *handle);
        if (record == NULL && mapping != NULL) {
            record = mapping->record;
            if (!vgpu_record_refer(process, VGPU_HANDLE, *handle, record)) {
                VGPU_REAL(cuMemRelease)(*handle);
                record = NULL;
                result = CU_OUT_OF_MEMORY;
            }
        }
        if (record != NULL)
            record->handles++;
    }
    vgpu_unlock(&process->vmm.lock);
    return result;
}
