// SPDX-License-Identifier: Apache-2.0
//
// Records of memory made by cuMemCreate: what refers to it, and its end.
//
// Invariant: a record lives as long as a handle, a mapping or a binding refers to it.
// Dropping an object ends its bindings, and with them perhaps further records.

#include "memory/vmm.h"

#include "memory/ipc_share.h"

#include <stdlib.h>

struct vgpu_record *vgpu_record_of(struct vgpu_process *process, cu_handle handle) {
    return vgpu_table_find(&process->table, vgpu_key(VGPU_HANDLE, handle));
}

bool vgpu_record_refer(struct vgpu_process *process, enum vgpu_class class, uint64_t id, void *to) {
    struct vgpu_entry old;
    return vgpu_table_put(&process->table,
                          &(struct vgpu_entry){vgpu_key(class, id), (uintptr_t)to, NULL}, &old);
}

void vgpu_bind(struct vgpu_process *process, struct vgpu_record *record, struct vgpu_record *object, uint64_t id) {
    struct vgpu_binding *binding = malloc(sizeof *binding);
    if (binding == NULL)
        return;
    *binding = (struct vgpu_binding){.id = id, .of = record, .object = object};
    if (!vgpu_record_refer(process, VGPU_BOUND, id, binding))
        free(binding);
    else if (object != NULL)
        LIST_INSERT_HEAD(&object->bindings, binding, link);
}

void vgpu_unbind(struct vgpu_process *process, struct vgpu_binding *binding) {
    if (binding->object != NULL)
        LIST_REMOVE(binding, link);
    binding->of->mappings--;
    vgpu_record_drop(process, binding->of);
    free(binding);
}

// Ends what is bound to an object that has gone.
static void end_bindings(struct vgpu_process *process, struct vgpu_record *object) {
    struct vgpu_entry entry;
    for (struct vgpu_binding *binding; (binding = LIST_FIRST(&object->bindings)) != NULL;) {
        if (!object->abroad && !object->foreign) {
            vgpu_table_take(&process->table, vgpu_key(VGPU_BOUND, binding->id), &entry);
            vgpu_unbind(process, binding);
            continue;
        }
        LIST_REMOVE(binding, link);
        binding->object = NULL;
    }
}

void vgpu_record_drop(struct vgpu_process *process, struct vgpu_record *record) {
    if (record->handles != 0 || record->mappings != 0)
        return;
    end_bindings(process, record);
    if (record->borrowed >= 0)
        vgpu_import_end(process, record->borrowed);
    else if (record->shared >= 0)
        vgpu_share_end(process, record->shared, false);
    else if (record->device >= 0)
        vgpu_uncharge(process, record->device, record->bytes);
    free(record);
}

bool vgpu_record_reach(struct vgpu_process *process, struct vgpu_record *record, uint64_t offset,
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

struct vgpu_mapping *vgpu_mapping_around(const struct vgpu_process *process, cu_ptr ptr) {
    struct vgpu_mapping *mapping;
    LIST_FOREACH(mapping, &process->vmm.mappings, link)
        if (ptr - mapping->ptr < mapping->bytes)
            break;
    return mapping;
}
