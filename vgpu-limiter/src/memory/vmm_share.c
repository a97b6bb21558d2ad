// SPDX-License-Identifier: Apache-2.0
//
// Memory made by cuMemCreate on its way to other processes: charged to the one
// that made it as long as that lives, then to those who have imported it, or to
// nobody while a descriptor is open; from outside the container, as far as it is
// mapped.

#include "memory/ipc_share.h"
#include "memory/vmm.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

// An id that no other memory of any process ever has.
static uint64_t new_id(const struct vgpu_record *record) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t named[] = {(uintptr_t)record, (uint64_t)getpid(), (uint64_t)now.tv_sec, (uint64_t)now.tv_nsec};
    return vgpu_share_id(named, sizeof named);
}

cu_result cuMemExportToShareableHandle(void *out, cu_handle handle, int type,
                                       unsigned long long flags) {
    VGPU_PROCESS(process);
    vgpu_lock(&process->vmm.lock);
    cu_result result = VGPU_REAL(cuMemExportToShareableHandle)(out, handle, type, flags);
    struct vgpu_record *record = result == CU_OK ? vgpu_record_of(process, handle) : NULL;
    if (record != NULL && record->device < 0)
        record->abroad = true;
    if (record != NULL && record->device >= 0 && record->borrowed < 0 && !record->foreign) {
        bool as_bytes = type == CU_SHARE_FABRIC;
        uint64_t id = as_bytes ? vgpu_share_id(out, CU_FABRIC_BYTES) : new_id(record);
        if (record->shared < 0)
            record->shared = vgpu_share(process, id, record->device, record->bytes);
        if (type == CU_SHARE_DESCRIPTOR)
            vgpu_share_mark(process, record->shared, *(int *)out);
    }
    vgpu_unlock(&process->vmm.lock);
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
    VGPU_PROCESS(process);
    int from = -1, device = -1;
    uint64_t charged = 0;
    if (type == CU_SHARE_FABRIC && os != NULL)
        from = vgpu_import(process, vgpu_share_id(os, CU_FABRIC_BYTES));
    else if (type == CU_SHARE_DESCRIPTOR)
        from = vgpu_import_marked(process, (int)(intptr_t)os, &device, &charged);
    if (charged != 0 && !vgpu_charge_or_trim(process, device, charged))
        return CU_OUT_OF_MEMORY;
    atomic_store(&process->sharing.imports, true);
    struct vgpu_record *made = calloc(1, sizeof *made);
    vgpu_lock(&process->vmm.lock);
    cu_result result = made != NULL ? VGPU_REAL(cuMemImportFromShareableHandle)(handle, os, type)
                                    : CU_OUT_OF_MEMORY;
    struct vgpu_record *known = result == CU_OK ? vgpu_record_of(process, *handle) : NULL;
    if (known != NULL) { // the driver gives one handle for the same memory
        known->handles++;
    } else if (result == CU_OK) {
        *made = (struct vgpu_record){.bytes = charged, .handles = 1, .shared = -1, .borrowed = from,
                                .device = charged != 0 ? device : device_of(process, *handle),
                                .foreign = from < 0 && charged == 0};
        if (vgpu_record_refer(process, VGPU_HANDLE, *handle, made)) {
            made = NULL;
            from = -1;
            charged = 0;
        } else {
            VGPU_REAL(cuMemRelease)(*handle);
            result = CU_OUT_OF_MEMORY;
        }
    }
    vgpu_unlock(&process->vmm.lock);
    if (from >= 0)
        vgpu_import_end(process, from);
    if (charged != 0)
        vgpu_uncharge(process, device, charged);
    free(made);
    return result;
}
