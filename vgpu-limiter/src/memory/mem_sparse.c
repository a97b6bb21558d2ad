// SPDX-License-Identifier: Apache-2.0
//
// Memory made by cuMemCreate under sparse and deferred arrays.
//
// Invariants:
//   1. An array keeps what was ever mapped under it, as a multicast object keeps what is
//      bound to it, until it goes: destroyed, or with its context. The driver never has
//      more, whatever streams have yet to map or unmap.
//   2. An array that has just been created keeps nothing: what is known of its handle is
//      of one that went with its context, and whose end hasn't been seen to yet.
//   3. vmm.lock is held across the driver's mapping, as in mem_vmm.c.

#include "memory/ipc_share.h"
#include "memory/vmm.h"

#include <stdlib.h>

#define TILE_BYTES UINT64_C(65536)

// The array as an object that keeps memory; made on first use. NULL without memory.
static struct vgpu_record *object_of(struct vgpu_process *process, const struct cu_array_map *map) {
    enum vgpu_class class = map->resource_type == CU_RESOURCE_MIPMAP ? VGPU_MIPMAP : VGPU_ARRAY;
    uint64_t key = vgpu_key(VGPU_SPARSE, (uintptr_t)map->resource);
    struct vgpu_record *object = vgpu_table_find(&process->table, key);
    struct vgpu_entry old, array = {0};
    if (object != NULL || (object = malloc(sizeof *object)) == NULL)
        return object;
    *object = (struct vgpu_record){.device = -1, .handles = 1, .shared = -1, .borrowed = -1};
    vgpu_table_get(&process->table, vgpu_key(class, (uintptr_t)map->resource), &array);
    if (vgpu_table_put(&process->table, &(struct vgpu_entry){key, (uintptr_t)object, array.owner}, &old))
        return object;
    free(object);
    return NULL;
}

// Counts what the driver has mapped: memory once for each array that keeps it.
static void keep(struct vgpu_process *process, const struct cu_array_map *map) {
    struct vgpu_record *record = map->operation == CU_OPERATION_MAP ? vgpu_record_of(process, map->handle) : NULL;
    uint64_t named[] = {(uintptr_t)map->resource, (uintptr_t)record};
    uint64_t id = vgpu_share_id(named, sizeof named) >> 4;
    if (record == NULL || vgpu_table_find(&process->table, vgpu_key(VGPU_BOUND, id)) != NULL)
        return;
    record->mappings++;
    struct vgpu_record *object = object_of(process, map);
    if (object != NULL)
        vgpu_bind(process, record, object, id);
}

// How much an operation maps: whole tiles, or all that a deferred array needs.
static uint64_t mapped_bytes(const struct cu_array_map *map) {
    bool mipmap = map->resource_type == CU_RESOURCE_MIPMAP;
    struct cu_sparse_properties properties = {0};
    struct cu_requirements needs = {0};
    cu_device device = 0;
    cu_result (*ask)(void *, void *) = vgpu_real(mipmap ? VGPU_cuMipmappedArrayGetSparseProperties : VGPU_cuArrayGetSparseProperties);
    cu_result (*ask_needs)(void *, void *, cu_device) =
        vgpu_real(mipmap ? VGPU_cuMipmappedArrayGetMemoryRequirements : VGPU_cuArrayGetMemoryRequirements);
    if (ask(&properties, map->resource) != CU_OK) {
        VGPU_REAL(cuCtxGetDevice)(&device);
        return ask_needs(&needs, map->resource, device) == CU_OK ? needs.size : 0; // there may be no such array
    }
    if (map->subresource_type == CU_SUBRESOURCE_TAIL)
        return map->tail.bytes;
    uint64_t bytes = TILE_BYTES;
    for (int i = 0; i < 3; i++) {
        uint64_t tile = properties.tile[i] != 0 ? properties.tile[i] : 1;
        bytes = vgpu_times(bytes, (map->texels.extent[i] + tile - 1) / tile);
    }
    return bytes;
}

// Charges for memory from outside the container, as far as it is mapped. False if that
// doesn't fit.
static bool reach(struct vgpu_process *process, const struct cu_array_map *map) {
    struct vgpu_record *record = vgpu_record_of(process, map->handle);
    return map->operation != CU_OPERATION_MAP || record == NULL || !record->foreign ||
           vgpu_record_reach(process, record, map->offset, mapped_bytes(map));
}

static cu_result map_arrays(enum vgpu_hook hook, struct cu_array_map *list, unsigned count, cu_stream stream) {
    VGPU_PROCESS(process);
    cu_result result = CU_OK, (*real)(struct cu_array_map *, unsigned, cu_stream) = vgpu_real(hook);
    vgpu_lock(&process->vmm.lock);
    for (unsigned i = 0; list != NULL && i < count && result == CU_OK; i++)
        result = reach(process, &list[i]) ? CU_OK : CU_OUT_OF_MEMORY;
    if (result == CU_OK)
        result = real(list, count, stream);
    for (unsigned i = 0; result == CU_OK && i < count; i++)
        keep(process, &list[i]);
    vgpu_unlock(&process->vmm.lock);
    return result;
}

cu_result cuMemMapArrayAsync(struct cu_array_map *list, unsigned count, cu_stream stream) {
    return map_arrays(VGPU_cuMemMapArrayAsync, list, count, stream);
}

cu_result cuMemMapArrayAsync_ptsz(struct cu_array_map *list, unsigned count, cu_stream stream) {
    return map_arrays(VGPU_cuMemMapArrayAsync_ptsz, list, count, stream);
}

void vgpu_sparse_end(struct vgpu_process *process, struct vgpu_record *arrays) {
    vgpu_lock(&process->vmm.lock);
    for (struct vgpu_record *next; arrays != NULL; arrays = next) {
        next = arrays->next;
        arrays->handles--;
        vgpu_record_drop(process, arrays);
    }
    vgpu_unlock(&process->vmm.lock);
}
