// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: memory made by cuMemCreate.
//
// Invariants:
//   1. Memory is charged from before cuMemCreate until neither a handle nor a
//      mapping refers to it: create, map, release leaves it charged.
//   2. A mapping refers to the record, not to the handle, whose number the driver
//      may give to other memory once it is released.
//   3. vmm_lock is held across these calls of the driver, so that the counts and
//      the driver's own never part. They are rare and slow; the driver has a lock
//      of its own around them.

#include "share.h"

#include <stdlib.h>

struct record {
    uint64_t bytes;
    int device; // -1: memory that is not charged here, such as the host's
    unsigned handles, mappings;
    int shared;   // its record (share.c), -1 for none
    int borrowed; // the record of another process, -1 for none
    bool foreign; // from outside the container: its size is known by its mappings
};

struct vgpu_mapping {
    cu_ptr ptr;
    uint64_t bytes;
    struct record *record;
    struct vgpu_mapping *next, *previous;
};

static struct record *record_of(struct vgpu_process *process, cu_handle handle) {
    struct vgpu_entry entry;
    if (!vgpu_table_get(&process->memory, vgpu_key(VGPU_HANDLE, handle), &entry))
        return NULL;
    return (struct record *)(uintptr_t)entry.value;
}

static bool refer(struct vgpu_process *process, enum vgpu_class class, uint64_t id, void *to) {
    struct vgpu_entry old;
    return vgpu_table_put(&process->memory,
                          (struct vgpu_entry){vgpu_key(class, id), (uintptr_t)to, NULL}, &old);
}

static void drop_if_unused(struct vgpu_process *process, struct record *record) {
    if (record->handles != 0 || record->mappings != 0)
        return;
    if (record->borrowed >= 0)
        vgpu_import_end(process, record->borrowed);
    else if (record->shared >= 0)
        vgpu_share_end(process, record->shared, false);
    else if (record->device >= 0)
        vgpu_uncharge(process, record->device, record->bytes);
    free(record);
}

cu_result cuMemCreate(cu_handle *handle, size_t bytes, const struct cu_alloc_prop *prop,
                      unsigned long long flags) {
    if (prop == NULL || prop->location.type != CU_LOCATION_DEVICE) // host memory, or an error
        return VGPU_REAL(cuMemCreate)(handle, bytes, prop, flags);
    struct vgpu_call call;
    if (vgpu_begin_on(&call, prop->location.id, bytes) != CU_OK)
        return call.result;
    struct record *record = malloc(sizeof *record);
    call.result = record != NULL ? VGPU_REAL(cuMemCreate)(handle, bytes, prop, flags)
                                 : CU_OUT_OF_MEMORY;
    if (call.result == CU_OK) {
        *record = (struct record){.bytes = call.charged, .device = call.here.device, .handles = 1,
                                  .shared = -1, .borrowed = -1};
        if (refer(call.process, VGPU_HANDLE, *handle, record))
            return CU_OK;
        VGPU_REAL(cuMemRelease)(*handle);
        call.result = CU_OUT_OF_MEMORY;
    }
    vgpu_uncharge(call.process, call.here.device, call.charged);
    free(record);
    return call.result;
}

cu_result cuMemRelease(cu_handle handle) {
    cu_result why;
    struct vgpu_process *process = vgpu_process(&why);
    if (process == NULL)
        return why;
    vgpu_lock(&process->vmm_lock);
    struct record *record = record_of(process, handle);
    cu_result result = VGPU_REAL(cuMemRelease)(handle);
    if (result == CU_OK && record != NULL) {
        struct vgpu_entry entry;
        if (--record->handles == 0)
            vgpu_table_take(&process->memory, vgpu_key(VGPU_HANDLE, handle), &entry);
        drop_if_unused(process, record);
    }
    vgpu_unlock(&process->vmm_lock);
    return result;
}

// Remembers a mapping that the driver has made.
static bool add_mapping(struct vgpu_process *process, struct vgpu_mapping *mapping) {
    if (!refer(process, VGPU_MAPPING, mapping->ptr, mapping))
        return false;
    mapping->record->mappings++;
    mapping->previous = NULL;
    mapping->next = process->mappings;
    if (mapping->next != NULL)
        mapping->next->previous = mapping;
    process->mappings = mapping;
    return true;
}

// Charges for memory from outside the container as far as it is mapped.
static bool reach(struct vgpu_process *process, struct record *record, uint64_t offset,
                  uint64_t bytes) {
    uint64_t end;
    if (!record->foreign || record->device < 0)
        return true;
    if (__builtin_add_overflow(offset, bytes, &end) || end <= record->bytes)
        return true; // the driver says what is wrong
    if (!vgpu_charge(process, record->device, end - record->bytes))
        return false;
    record->bytes = end;
    return true;
}

cu_result cuMemMap(cu_ptr ptr, size_t bytes, size_t offset, cu_handle handle,
                   unsigned long long flags) {
    cu_result why;
    struct vgpu_process *process = vgpu_process(&why);
    if (process == NULL)
        return why;
    struct vgpu_mapping *mapping = malloc(sizeof *mapping);
    if (mapping == NULL)
        return CU_OUT_OF_MEMORY;
    vgpu_lock(&process->vmm_lock);
    struct record *record = record_of(process, handle), *stranger = NULL;
    if (record == NULL) // host memory, or imported: known by its mapping only
        record = stranger = calloc(1, sizeof *stranger);
    cu_result result = CU_OUT_OF_MEMORY;
    if (record != NULL) {
        if (stranger != NULL)
            stranger->device = stranger->shared = stranger->borrowed = -1;
        *mapping = (struct vgpu_mapping){.ptr = ptr, .bytes = bytes, .record = record};
        if (reach(process, record, offset, bytes))
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
    vgpu_unlock(&process->vmm_lock);
    return result;
}

// The driver only unmaps whole mappings, one or several in a row.
cu_result cuMemUnmap(cu_ptr ptr, size_t bytes) {
    cu_result why;
    struct vgpu_process *process = vgpu_process(&why);
    if (process == NULL)
        return why;
    vgpu_lock(&process->vmm_lock);
    cu_result result = VGPU_REAL(cuMemUnmap)(ptr, bytes);
    struct vgpu_entry entry;
    for (cu_ptr at = ptr; result == CU_OK && at - ptr < bytes;) {
        if (!vgpu_table_take(&process->memory, vgpu_key(VGPU_MAPPING, at), &entry))
            break;
        struct vgpu_mapping *mapping = (struct vgpu_mapping *)(uintptr_t)entry.value;
        *(mapping->previous != NULL ? &mapping->previous->next : &process->mappings) = mapping->next;
        if (mapping->next != NULL)
            mapping->next->previous = mapping->previous;
        at += mapping->bytes;
        mapping->record->mappings--;
        drop_if_unused(process, mapping->record);
        free(mapping);
    }
    vgpu_unlock(&process->vmm_lock);
    return result;
}

// A handle for the memory behind an address, which may have none left.
cu_result cuMemRetainAllocationHandle(cu_handle *handle, void *address) {
    cu_result why;
    struct vgpu_process *process = vgpu_process(&why);
    if (process == NULL)
        return why;
    vgpu_lock(&process->vmm_lock);
    cu_result result = VGPU_REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CU_OK) {
        struct vgpu_mapping *mapping = process->mappings;
        while (mapping != NULL && (uintptr_t)address - mapping->ptr >= mapping->bytes)
            mapping = mapping->next;
        struct record *record = record_of(process, *handle);
        if (record == NULL && mapping != NULL && refer(process, VGPU_HANDLE, *handle, mapping->record))
            record = mapping->record;
        if (record != NULL)
            record->handles++;
    }
    vgpu_unlock(&process->vmm_lock);
    return result;
}

// Sparse arrays don't say when they let go of memory mapped under them, so it
// stays charged: a use that hardly any compute program has.
static cu_result map_arrays(enum vgpu_hook hook, struct cu_array_map *list, unsigned count,
                            cu_stream stream) {
    cu_result why;
    struct vgpu_process *process = vgpu_process(&why);
    if (process == NULL)
        return why;
    cu_result (*real)(struct cu_array_map *, unsigned, cu_stream) = vgpu_real(hook);
    vgpu_lock(&process->vmm_lock);
    cu_result result = real(list, count, stream);
    for (unsigned i = 0; result == CU_OK && i < count; i++) {
        struct record *record = record_of(process, list[i].handle);
        if (list[i].operation == CU_OPERATION_MAP && record != NULL)
            record->mappings++;
    }
    vgpu_unlock(&process->vmm_lock);
    return result;
}

cu_result cuMemMapArrayAsync(struct cu_array_map *list, unsigned count, cu_stream stream) {
    return map_arrays(VGPU_cuMemMapArrayAsync, list, count, stream);
}

cu_result cuMemMapArrayAsync_ptsz(struct cu_array_map *list, unsigned count, cu_stream stream) {
    return map_arrays(VGPU_cuMemMapArrayAsync_ptsz, list, count, stream);
}

cu_result cuMemExportToShareableHandle(void *out, cu_handle handle, int type,
                                       unsigned long long flags) {
    cu_result why;
    struct vgpu_process *process = vgpu_process(&why);
    if (process == NULL)
        return why;
    vgpu_lock(&process->vmm_lock);
    cu_result result = VGPU_REAL(cuMemExportToShareableHandle)(out, handle, type, flags);
    struct record *record = result == CU_OK ? record_of(process, handle) : NULL;
    if (record != NULL && record->device >= 0 && record->borrowed < 0 && !record->foreign) {
        bool as_bytes = type == CU_SHARE_FABRIC;
        uint64_t id = as_bytes ? vgpu_share_id(out, CU_FABRIC_BYTES)
                               : vgpu_share_id(&record, sizeof record);
        if (record->shared < 0)
            record->shared = vgpu_share(process, id, (uintptr_t)record, record->device, record->bytes);
        if (type == CU_SHARE_DESCRIPTOR)
            vgpu_share_mark(record->shared, *(int *)out);
    }
    vgpu_unlock(&process->vmm_lock);
    return result;
}

// The device of memory that this process hasn't made; -1 if it isn't limited.
static int device_of(struct vgpu_process *process, cu_handle handle) {
    struct cu_alloc_prop prop = {0};
    if (VGPU_REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, handle) != CU_OK ||
        prop.location.type != CU_LOCATION_DEVICE || prop.location.id < 0 ||
        prop.location.id >= VGPU_ORDINALS)
        return -1;
    return process->index[prop.location.id];
}

cu_result cuMemImportFromShareableHandle(cu_handle *handle, void *os, int type) {
    cu_result result;
    struct vgpu_process *process = vgpu_process(&result);
    if (process == NULL)
        return result;
    int from = -1;
    if (type == CU_SHARE_FABRIC && os != NULL)
        from = vgpu_import(process, vgpu_share_id(os, CU_FABRIC_BYTES));
    else if (type == CU_SHARE_DESCRIPTOR)
        from = vgpu_share_marked(process, (int)(intptr_t)os);
    if (from >= 0 && type == CU_SHARE_DESCRIPTOR)
        from = vgpu_import_at(process, from);
    atomic_store(&process->imports, true);
    struct record *made = calloc(1, sizeof *made);
    vgpu_lock(&process->vmm_lock);
    result = made != NULL ? VGPU_REAL(cuMemImportFromShareableHandle)(handle, os, type)
                          : CU_OUT_OF_MEMORY;
    struct record *known = result == CU_OK ? record_of(process, *handle) : NULL;
    if (known != NULL) { // the driver gives one handle for the same memory
        known->handles++;
    } else if (result == CU_OK) {
        *made = (struct record){.device = device_of(process, *handle), .handles = 1, .shared = -1,
                                .borrowed = from, .foreign = from < 0};
        if (refer(process, VGPU_HANDLE, *handle, made)) {
            made = NULL;
            from = -1;
        } else {
            VGPU_REAL(cuMemRelease)(*handle);
            result = CU_OUT_OF_MEMORY;
        }
    }
    vgpu_unlock(&process->vmm_lock);
    if (from >= 0)
        vgpu_import_end(process, from);
    free(made);
    return result;
}
