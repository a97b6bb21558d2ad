// SPDX-License-Identifier: Apache-2.0
//
// Memory made by cuMemCreate under sparse arrays, tile by tile, and under deferred
// ones, as a whole.
//
// Invariants:
//   1. A tile refers to the memory that was mapped there last, as a mapping does,
//      until it is unmapped or its array goes, by itself or with its context.
//   2. Unmapping is the stream's to do: until it has, the memory stays charged
//      (deferred_unmap.c).
//   3. An array that has just been created has no tiles: what is known of its handle is
//      of one that went with its context, and whose end hasn't been seen to yet.
//   4. All under vmm.lock, which is held across the driver's calls as in mem_vmm.c.

#include "memory/mem_sparse.h"

#include "memory/deferred_unmap.h"
#include "memory/ipc_share.h"

#include <stdlib.h>

#define TILE_BYTES UINT64_C(65536)

struct place {
    uint64_t at[3];
    unsigned level, layer;
};

struct tile {
    uint64_t id;
    struct place place;
    struct vgpu_record *record;
    LIST_ENTRY(tile) link;
};

struct vgpu_sparse {
    void *array;
    cu_ctx ctx; // whose end is the array's
    bool whole; // deferred: one tile
    unsigned extent[3]; // of a tile
    LIST_HEAD(, tile) tiles;
    unsigned count;
    LIST_ENTRY(vgpu_sparse) link;
};

// Part of an array: of a level, in tiles, or of the mip tail, which is level TAIL.
struct box {
    struct place from;
    uint64_t n[3];
};
#define TAIL 64u

static struct vgpu_sparse *sparse_of(struct vgpu_process *process, void *array) {
    return vgpu_table_find(&process->table, vgpu_key(VGPU_SPARSE, (uintptr_t)array));
}

// What an operation is about, which may have no tiles yet. NULL without memory.
static struct vgpu_sparse *open_sparse(struct vgpu_process *process, const struct cu_array_map *map) {
    bool mipmap = map->resource_type == CU_RESOURCE_MIPMAP;
    struct vgpu_sparse *sparse = sparse_of(process, map->resource);
    struct vgpu_entry entry = {0};
    if (sparse != NULL || (sparse = calloc(1, sizeof *sparse)) == NULL)
        return sparse;
    struct cu_sparse_properties properties = {0};
    enum vgpu_hook ask = mipmap ? VGPU_cuMipmappedArrayGetSparseProperties : VGPU_cuArrayGetSparseProperties;
    cu_result (*real)(struct cu_sparse_properties *, void *) = vgpu_real(ask);
    vgpu_table_get(&process->table, vgpu_key(mipmap ? VGPU_MIPMAP : VGPU_ARRAY, (uintptr_t)map->resource), &entry);
    sparse->array = map->resource;
    sparse->ctx = entry.owner;
    sparse->whole = real(&properties, map->resource) != CU_OK;
    for (int i = 0; i < 3; i++) {
        sparse->extent[i] = properties.tile[i];
        sparse->whole |= properties.tile[i] == 0;
    }
    if (!vgpu_record_refer(process, VGPU_SPARSE, (uintptr_t)map->resource, sparse)) {
        free(sparse);
        return NULL;
    }
    LIST_INSERT_HEAD(&process->vmm.sparse, sparse, link);
    return sparse;
}

static void close_sparse(struct vgpu_process *process, struct vgpu_sparse *sparse) {
    struct vgpu_entry entry;
    LIST_REMOVE(sparse, link);
    vgpu_table_take(&process->table, vgpu_key(VGPU_SPARSE, (uintptr_t)sparse->array), &entry);
    free(sparse);
}

// What ends with its level instead of a tile counts as if it ended with one.
static struct box box_of(const struct vgpu_sparse *sparse, const struct cu_array_map *map) {
    struct box box = {.n = {1, 1, 1}};
    if (sparse->whole)
        return box;
    if (map->subresource_type == CU_SUBRESOURCE_TAIL) {
        box.from = (struct place){.at = {map->tail.at / TILE_BYTES}, .level = TAIL, .layer = map->tail.layer};
        box.n[0] = (map->tail.at + map->tail.bytes + TILE_BYTES - 1) / TILE_BYTES - box.from.at[0];
        return box;
    }
    box.from.level = map->texels.level;
    box.from.layer = map->texels.layer;
    for (int i = 0; i < 3; i++) {
        uint64_t end = (uint64_t)map->texels.at[i] + map->texels.extent[i];
        box.from.at[i] = map->texels.at[i] / sparse->extent[i];
        box.n[i] = (end + sparse->extent[i] - 1) / sparse->extent[i] - box.from.at[i];
    }
    return box;
}

static uint64_t tiles_in(const struct box *box) { return vgpu_times(box->n[0], vgpu_times(box->n[1], box->n[2])); }

static bool is_in(const struct place *place, const struct box *box) {
    bool in = place->level == box->from.level && place->layer == box->from.layer;
    for (int i = 0; i < 3; i++)
        in = in && place->at[i] - box->from.at[i] < box->n[i];
    return in;
}

static uint64_t id_of(const struct vgpu_sparse *sparse, const struct place *place) {
    uint64_t named[] = {(uintptr_t)sparse->array, (uint64_t)place->level << 32 | place->layer,
                        place->at[0], place->at[1], place->at[2]};
    return vgpu_share_id(named, sizeof named) >> 4;
}

static void take_tile(struct vgpu_process *process, struct vgpu_sparse *sparse, struct tile *tile,
                      struct vgpu_deferred_unmap **gone) {
    struct vgpu_entry entry;
    vgpu_table_take(&process->table, vgpu_key(VGPU_TILE, tile->id), &entry);
    LIST_REMOVE(tile, link);
    sparse->count--;
    vgpu_deferred_add(gone, tile->record);
    free(tile);
}

// Without memory to remember it, a tile keeps what is mapped there charged until the
// process ends.
static void put_tile(struct vgpu_process *process, struct vgpu_sparse *sparse, const struct place *place,
                     struct vgpu_record *record, struct vgpu_deferred_unmap **gone) {
    uint64_t id = id_of(sparse, place);
    struct tile *tile = vgpu_table_find(&process->table, vgpu_key(VGPU_TILE, id));
    record->mappings++;
    if (tile != NULL)
        take_tile(process, sparse, tile, gone);
    tile = malloc(sizeof *tile);
    if (tile == NULL)
        return;
    *tile = (struct tile){.id = id, .place = *place, .record = record};
    if (!vgpu_record_refer(process, VGPU_TILE, id, tile)) {
        free(tile);
        return;
    }
    LIST_INSERT_HEAD(&sparse->tiles, tile, link);
    sparse->count++;
}

static void map_box(struct vgpu_process *process, struct vgpu_sparse *sparse, const struct box *box,
                    struct vgpu_record *record, struct vgpu_deferred_unmap **gone) {
    struct place place = box->from;
    for (uint64_t z = 0; z < box->n[2]; z++)
        for (uint64_t y = 0; y < box->n[1]; y++)
            for (uint64_t x = 0; x < box->n[0]; x++) {
                place.at[0] = box->from.at[0] + x;
                place.at[1] = box->from.at[1] + y;
                place.at[2] = box->from.at[2] + z;
                put_tile(process, sparse, &place, record, gone);
            }
}

// Looks at each tile of the box, or at each that the array has, whichever are fewer.
static void unmap_box(struct vgpu_process *process, struct vgpu_sparse *sparse, const struct box *box,
                      struct vgpu_deferred_unmap **gone) {
    uint64_t count = tiles_in(box);
    if (count >= sparse->count) {
        for (struct tile *tile = LIST_FIRST(&sparse->tiles), *next; tile != NULL; tile = next) {
            next = LIST_NEXT(tile, link);
            if (is_in(&tile->place, box))
                take_tile(process, sparse, tile, gone);
        }
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        struct place place = box->from;
        place.at[0] += i % box->n[0];
        place.at[1] += i / box->n[0] % box->n[1];
        place.at[2] += i / box->n[0] / box->n[1];
        struct tile *tile = vgpu_table_find(&process->table, vgpu_key(VGPU_TILE, id_of(sparse, &place)));
        if (tile != NULL)
            take_tile(process, sparse, tile, gone);
    }
}

// Counts what the driver has done.
static void follow(struct vgpu_process *process, const struct cu_array_map *map, struct vgpu_deferred_unmap **gone) {
    bool maps = map->operation == CU_OPERATION_MAP;
    struct vgpu_record *record = maps ? vgpu_record_of(process, map->handle) : NULL;
    struct vgpu_sparse *sparse = open_sparse(process, map);
    if (sparse == NULL) {
        if (record != NULL)
            record->mappings++;
        return;
    }
    struct box box = box_of(sparse, map);
    if (record != NULL)
        map_box(process, sparse, &box, record, gone);
    else // memory that isn't charged takes the place of what is
        unmap_box(process, sparse, &box, gone);
    if (sparse->count == 0)
        close_sparse(process, sparse);
}

// Charges for memory from outside the container, as far as the tiles reach.
static bool reach(struct vgpu_process *process, const struct cu_array_map *map) {
    struct vgpu_record *record = vgpu_record_of(process, map->handle);
    if (map->operation != CU_OPERATION_MAP || record == NULL || !record->foreign)
        return true;
    struct vgpu_sparse *sparse = open_sparse(process, map);
    struct box box = sparse != NULL ? box_of(sparse, map) : (struct box){.n = {1, 1, 1}};
    if (sparse != NULL && sparse->count == 0) // there may be no such array
        close_sparse(process, sparse);
    return vgpu_record_reach(process, record, map->offset, vgpu_times(tiles_in(&box), TILE_BYTES));
}

static cu_result map_arrays(enum vgpu_hook hook, struct cu_array_map *list, unsigned count, cu_stream stream) {
    cu_result result = CU_OK;
    struct vgpu_process *process = vgpu_process(&result);
    struct vgpu_deferred_unmap *gone = NULL;
    cu_result (*real)(struct cu_array_map *, unsigned, cu_stream) = vgpu_real(hook);
    if (process == NULL)
        return result;
    vgpu_lock(&process->vmm.lock);
    for (unsigned i = 0; list != NULL && i < count && result == CU_OK; i++)
        result = reach(process, &list[i]) ? CU_OK : CU_OUT_OF_MEMORY;
    if (result == CU_OK)
        result = real(list, count, stream);
    for (unsigned i = 0; result == CU_OK && i < count; i++)
        follow(process, &list[i], &gone);
    vgpu_deferred_until(process, gone, hook == VGPU_cuMemMapArrayAsync_ptsz, stream);
    vgpu_unlock(&process->vmm.lock);
    return result;
}

cu_result cuMemMapArrayAsync(struct cu_array_map *list, unsigned count, cu_stream stream) {
    return map_arrays(VGPU_cuMemMapArrayAsync, list, count, stream);
}

cu_result cuMemMapArrayAsync_ptsz(struct cu_array_map *list, unsigned count, cu_stream stream) {
    return map_arrays(VGPU_cuMemMapArrayAsync_ptsz, list, count, stream);
}

// Under vmm.lock. Ends an array that the driver has destroyed.
static void end(struct vgpu_process *process, struct vgpu_sparse *sparse) {
    struct vgpu_deferred_unmap *gone = NULL;
    while (!LIST_EMPTY(&sparse->tiles))
        take_tile(process, sparse, LIST_FIRST(&sparse->tiles), &gone);
    close_sparse(process, sparse);
    vgpu_deferred_end(process, gone);
}

cu_result vgpu_sparse_destroy(struct vgpu_process *process, void *array, cu_result (*destroy)(void *)) {
    vgpu_lock(&process->vmm.lock);
    struct vgpu_sparse *sparse = sparse_of(process, array);
    if (sparse == NULL) {
        vgpu_unlock(&process->vmm.lock);
        return destroy(array);
    }
    cu_result result = destroy(array);
    if (result == CU_OK)
        end(process, sparse);
    vgpu_unlock(&process->vmm.lock);
    return result;
}

void vgpu_sparse_begin(struct vgpu_process *process, void *array) {
    vgpu_lock(&process->vmm.lock);
    struct vgpu_sparse *old = sparse_of(process, array);
    if (old != NULL)
        end(process, old);
    vgpu_unlock(&process->vmm.lock);
}

void vgpu_sparse_give(struct vgpu_process *process, cu_ctx from, cu_ctx to) {
    vgpu_lock(&process->vmm.lock);
    struct vgpu_sparse *sparse;
    LIST_FOREACH(sparse, &process->vmm.sparse, link)
        if (sparse->ctx == from)
            sparse->ctx = to;
    vgpu_deferred_give(process, from, to);
    vgpu_unlock(&process->vmm.lock);
}

void vgpu_sparse_forget(struct vgpu_process *process, cu_ctx ctx) {
    vgpu_lock(&process->vmm.lock);
    for (struct vgpu_sparse *sparse = LIST_FIRST(&process->vmm.sparse), *next; sparse != NULL; sparse = next) {
        next = LIST_NEXT(sparse, link);
        if (sparse->ctx == ctx)
            end(process, sparse);
    }
    vgpu_deferred_forget(process, ctx);
    vgpu_unlock(&process->vmm.lock);
}
