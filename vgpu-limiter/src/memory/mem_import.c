// SPDX-License-Identifier: Apache-2.0
//
// Memory of other processes, by handles that are passed as bytes, and of other
// drivers. (Handles of cuMemCreate's memory: mem_vmm.c.)
//
// Invariants:
//   1. What a living process of the container is charged for is charged to no
//      importer; everything else is, for as long as it is open.
//   2. A driver that is given a handle again answers with the same address and
//      counts. So does the library; sharing.open_lock is held across these calls, so that
//      the counts never part.

#include "memory/ipc_share.h"
#include "memory/memory.h"
#include "memory/pool.h"

// Lets others import what is kept under the pointer, or what it points into.
static void share_pointer(cu_ptr ptr, const void *handle, size_t bytes) {
    cu_result why;
    struct vgpu_process *process = vgpu_process(&why);
    struct vgpu_entry entry, old;
    cu_ptr base = ptr;
    size_t size;
    if (process == NULL)
        return;
    if (VGPU_REAL(cuMemGetAddressRange_v2)(&base, &size, ptr) != CU_OK)
        base = ptr;
    // One record, also if another thread asks for the handle now. Not under sharing.lock, which is
    // taken under a table's lock where a context ends.
    vgpu_lock(&process->sharing.open_lock);
    bool ours = vgpu_table_get(&process->table, vgpu_key(VGPU_POINTER, base), &entry) &&
                (entry.value & (VGPU_SHARED | VGPU_BORROWED)) == 0;
    int record = ours ? vgpu_share(process, vgpu_share_id(handle, bytes), vgpu_value_device(entry.value),
                                   vgpu_value_bytes(entry.value))
                      : -1;
    if (record >= 0) {
        entry.value |= vgpu_value_shared(record);
        vgpu_table_put(&process->table, &entry, &old);
    }
    vgpu_unlock(&process->sharing.open_lock);
}

cu_result cuIpcGetMemHandle(struct cu_handle_bytes *handle, cu_ptr ptr) {
    cu_result result = VGPU_REAL(cuIpcGetMemHandle)(handle, ptr);
    if (result == CU_OK)
        share_pointer(ptr, handle, sizeof *handle);
    return result;
}

cu_result cuMemPoolExportPointer(struct cu_handle_bytes *handle, cu_ptr ptr) {
    cu_result result = VGPU_REAL(cuMemPoolExportPointer)(handle, ptr);
    if (result == CU_OK)
        share_pointer(ptr, handle, sizeof *handle);
    return result;
}

// The index in the limits of the device that memory lies on.
static int device_of(struct vgpu_process *process, cu_ptr ptr, int otherwise) {
    int ordinal = -1;
    if (VGPU_REAL(cuPointerGetAttribute)(&ordinal, CU_POINTER_DEVICE, ptr) != CU_OK)
        return otherwise;
    return ordinal >= 0 && ordinal < VGPU_ORDINALS ? process->index[ordinal] : -1;
}

// How often the memory at an address is open beyond once.
static uint64_t opened(struct vgpu_process *process, cu_ptr ptr) {
    struct vgpu_entry entry = {0};
    vgpu_table_get(&process->table, vgpu_key(VGPU_OPENED, ptr), &entry);
    return entry.value;
}

static bool set_opened(struct vgpu_process *process, cu_ptr ptr, uint64_t times) {
    struct vgpu_entry entry = {vgpu_key(VGPU_OPENED, ptr), times, NULL}, old;
    if (times != 0)
        return vgpu_table_put(&process->table, &entry, &old);
    vgpu_table_take(&process->table, entry.key, &old);
    return true;
}

// Ends an import that the driver has answered: remembers it, charged where nobody
// else is. False: it doesn't fit, and the caller closes it.
static bool commit_import(struct vgpu_call *call, enum vgpu_class class, int index, cu_ptr ptr) {
    cu_ptr base;
    size_t bytes = 0;
    struct vgpu_entry entry = {vgpu_key(class, ptr), (uint64_t)index | VGPU_BORROWED, call->here.ctx};
    if (call->result != CU_OK) {
        if (index >= 0)
            vgpu_import_end(call->process, index);
        return true;
    }
    if (class == VGPU_IMPORT) {
        bool again = vgpu_table_get(&call->process->table, entry.key, &(struct vgpu_entry){0});
        bool noted = set_opened(call->process, ptr, again ? opened(call->process, ptr) + 1 : 0);
        if (again && index >= 0)
            vgpu_import_end(call->process, index);
        if (!noted)
            call->result = CU_OUT_OF_MEMORY;
        if (again)
            return noted;
    }
    if (index >= 0) {
        if (vgpu_remember(call->process, &entry))
            return true;
        vgpu_import_end(call->process, index);
        call->result = CU_OUT_OF_MEMORY;
        return false;
    }
    call->here.device = device_of(call->process, ptr, call->here.device);
    if (call->here.device < 0 ||
        VGPU_REAL(cuMemGetAddressRange_v2)(&base, &bytes, ptr) != CU_OK)
        return true; // not of a device that is limited
    return vgpu_commit(call, entry.key, bytes);
}

#define OPEN(ptr, handle, flags, open)                                                        \
    do {                                                                                      \
        struct vgpu_call call;                                                                \
        if (vgpu_begin(&call, 0) != CU_OK)                                                    \
            return call.result;                                                               \
        vgpu_lock(&call.process->sharing.open_lock);                                                  \
        int index = vgpu_import(call.process, vgpu_share_id(&(handle), sizeof(handle)));      \
        call.result = VGPU_REAL(open)(ptr, handle, flags);                                    \
        if (!commit_import(&call, VGPU_IMPORT, index, call.result == CU_OK ? *(ptr) : 0))       \
            VGPU_REAL(cuIpcCloseMemHandle)(*(ptr));                                           \
        vgpu_unlock(&call.process->sharing.open_lock);                                                \
        return call.result;                                                                   \
    } while (0)

cu_result cuIpcOpenMemHandle(cu_ptr *ptr, struct cu_handle_bytes handle, unsigned flags) {
    OPEN(ptr, handle, flags, cuIpcOpenMemHandle);
}
cu_result cuIpcOpenMemHandle_v2(cu_ptr *ptr, struct cu_handle_bytes handle, unsigned flags) {
    OPEN(ptr, handle, flags, cuIpcOpenMemHandle_v2);
}

cu_result cuIpcCloseMemHandle(cu_ptr ptr) {
    VGPU_PROCESS(process);
    struct vgpu_release release = {0};
    vgpu_lock(&process->sharing.open_lock);
    uint64_t others = opened(process, ptr);
    if (others == 0)
        vgpu_release_begin(&release, vgpu_key(VGPU_IMPORT, ptr));
    cu_result result = VGPU_REAL(cuIpcCloseMemHandle)(ptr);
    if (others != 0 && result == CU_OK)
        set_opened(process, ptr, others - 1);
    vgpu_release_end(&release, result);
    vgpu_unlock(&process->sharing.open_lock);
    return result;
}

// An imported pool has no memory of its own.
cu_result cuMemPoolImportFromShareableHandle(cu_pool *pool, void *handle, int type,
                                             unsigned long long flags) {
    VGPU_PROCESS(process);
    cu_result result = VGPU_REAL(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags);
    if (result != CU_OK)
        return result;
    vgpu_lock_hot(&process->pools.lock);
    bool known = vgpu_pool_find(process, *pool, -1) != NULL;
    vgpu_unlock_hot(&process->pools.lock);
    if (known)
        return CU_OK;
    VGPU_REAL(cuMemPoolDestroy)(*pool);
    return CU_OUT_OF_MEMORY;
}

cu_result cuMemPoolImportPointer(cu_ptr *ptr, cu_pool pool, struct cu_handle_bytes *handle) {
    struct vgpu_call call = {.here = {.device = -1}};
    call.process = vgpu_process(&call.result);
    if (call.process == NULL)
        return call.result;
    int index = handle != NULL ? vgpu_import(call.process, vgpu_share_id(handle, sizeof *handle)) : -1;
    call.result = VGPU_REAL(cuMemPoolImportPointer)(ptr, pool, handle);
    if (!commit_import(&call, VGPU_POINTER, index, call.result == CU_OK ? *ptr : 0))
        VGPU_REAL(cuMemFree_v2)(*ptr);
    return call.result;
}

// Memory of another driver: nobody else in the container is charged for it.
cu_result cuImportExternalMemory(cu_external *memory, const struct cu_external_desc *desc) {
    struct vgpu_call call;
    if (vgpu_begin(&call, desc != NULL ? desc->bytes : 0) != CU_OK)
        return call.result;
    call.result = VGPU_REAL(cuImportExternalMemory)(memory, desc);
    bool ok = call.result == CU_OK;
    if (!vgpu_commit(&call, ok ? vgpu_key(VGPU_EXTERNAL, (uintptr_t)*memory) : 0, call.charged) && ok)
        VGPU_REAL(cuDestroyExternalMemory)(*memory);
    return call.result;
}

cu_result cuDestroyExternalMemory(cu_external memory) {
    struct vgpu_release release;
    vgpu_release_begin(&release, vgpu_key(VGPU_EXTERNAL, (uintptr_t)memory));
    cu_result result = VGPU_REAL(cuDestroyExternalMemory)(memory);
    vgpu_release_end(&release, result);
    return result;
}
