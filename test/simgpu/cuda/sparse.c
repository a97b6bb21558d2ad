// SPDX-License-Identifier: Apache-2.0
//
// sparse.c: arrays whose memory is mapped tile by tile (sparse) or as a whole
// (deferred).
//
// Invariants:
// - Such an array takes no memory of its own. A tile holds the memory that was
//   mapped there last, until it is unmapped or the array is destroyed.
// - Tiles are of 64 KiB and of the real driver's shapes. Levels smaller than a tile
//   in any dimension are the mip tail, each layer's by itself.
// - A list of operations is done as a whole or not at all, at the call: not when
//   the stream gets there.
// - Everything here is guarded by va_lock.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define TILE ((size_t)64 << 10)
#define LEVELS 32

struct sparse {
    bool whole;  // deferred: one tile as large as the array
    size_t bytes;
    unsigned tile[3], layers, levels, tail;  // tail: the first level in it
    size_t tail_tiles;                       // of one layer
    size_t across[LEVELS][3], first[LEVELS + 1];
    size_t count;
    struct physical *of[];
};

// shape gives a tile's extent for elements of so many bytes.
static bool shape(size_t element, bool solid, unsigned tile[3]) {
    static const unsigned flat[5][2] = {{256, 256}, {256, 128}, {128, 128}, {128, 64}, {64, 64}};
    static const unsigned cube[5][3] = {{64, 32, 32}, {32, 32, 32}, {32, 32, 16}, {32, 16, 16}, {16, 16, 16}};
    unsigned i = element ? (unsigned)__builtin_ctzll(element) : 5;
    if (i > 4) return false;
    for (unsigned k = 0; k < 3; k++) tile[k] = solid ? cube[i][k] : k < 2 ? flat[i][k] : 1;
    return true;
}

struct sparse *sparse_new(const CUDA_ARRAY3D_DESCRIPTOR *d, size_t element, unsigned levels, size_t bytes) {
    struct sparse s = {.whole = d->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING, .bytes = bytes, .levels = levels};
    bool layered = d->Flags & CUDA_ARRAY3D_LAYERED, solid = d->Depth && !layered;
    size_t extent[3] = {d->Width, d->Height, solid ? d->Depth : 1};
    s.layers = layered && d->Depth ? (unsigned)d->Depth : 1;
    s.tail = levels;
    s.count = 1;
    if (!s.whole) {
        if (!d->Height || !shape(element, solid, s.tile)) return NULL;
        size_t small = 0;
        s.count = 0;
        for (unsigned l = 0; l < levels; l++) {
            size_t n = 1, texels = 1;
            for (unsigned k = 0; k < 3; k++) {
                size_t e = extent[k] >> l ? extent[k] >> l : 1;
                if (e < s.tile[k] && l < s.tail) s.tail = l;
                s.across[l][k] = (e + s.tile[k] - 1) / s.tile[k];
                n *= s.across[l][k];
                texels *= e;
            }
            s.first[l] = s.count;
            if (l >= s.tail) small += texels * element;
            else s.count += n * s.layers;
        }
        s.tail_tiles = (small + TILE - 1) / TILE;
        s.first[levels] = s.count;
        s.count += s.tail_tiles * s.layers;
    }
    struct sparse *made = calloc(1, sizeof s + s.count * sizeof s.of[0]);
    if (made) *made = s;
    return made;
}

void sparse_end(struct sparse *s) {
    if (!s) return;
    va_lock();
    for (size_t i = 0; i < s->count; i++)
        if (s->of[i]) vmm_let_go(s->of[i]);
    va_unlock();
    free(s);
}

static CUresult properties(CUDA_ARRAY_SPARSE_PROPERTIES *p, const struct sparse *s) {
    NEED(p && s && !s->whole);
    memset(p, 0, sizeof *p);
    p->tileExtent.width = s->tile[0];
    p->tileExtent.height = s->tile[1];
    p->tileExtent.depth = s->tile[2];
    p->miptailFirstLevel = s->tail;
    p->miptailSize = s->tail_tiles * TILE;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *p, CUarray array) {
    INITIALIZED;
    return properties(p, array_tiles(array));
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *p, CUmipmappedArray mipmap) {
    INITIALIZED;
    return properties(p, mipmap_tiles(mipmap));
}

// A box of tiles of one level and layer; a piece of the mip tail is flat.
struct region {
    size_t base, row, plane, from[3], n[3];
};

static bool tail_of(const struct sparse *s, const CUarrayMapInfo *info, struct region *r) {
    unsigned layer = info->subresource.miptail.layer;
    size_t at = info->subresource.miptail.offset, size = info->subresource.miptail.size, all = s->tail_tiles * TILE;
    if (layer >= s->layers || at % TILE || size % TILE || !size || at > all || size > all - at) return false;
    *r = (struct region){s->first[s->levels] + layer * s->tail_tiles, 0, 0, {at / TILE}, {size / TILE, 1, 1}};
    return true;
}

// An extent may end with the level instead of a tile.
static bool level_of(const struct sparse *s, const CUarrayMapInfo *info, struct region *r) {
    const __typeof__(info->subresource.sparseLevel) *l = &info->subresource.sparseLevel;
    size_t from[3] = {l->offsetX, l->offsetY, l->offsetZ}, n[3] = {l->extentWidth, l->extentHeight, l->extentDepth};
    if (l->level >= s->tail || l->layer >= s->layers) return false;
    const size_t *across = s->across[l->level];
    for (unsigned k = 0; k < 3; k++) {
        size_t end = (from[k] + n[k] + s->tile[k] - 1) / s->tile[k];
        if (from[k] % s->tile[k] || !n[k] || end > across[k]) return false;
        if (n[k] % s->tile[k] && end != across[k]) return false;
        r->from[k] = from[k] / s->tile[k];
        r->n[k] = end - r->from[k];
    }
    r->row = across[0];
    r->plane = across[0] * across[1];
    r->base = s->first[l->level] + l->layer * r->plane * across[2];
    return true;
}

static bool region_of(const struct sparse *s, const CUarrayMapInfo *info, struct region *r) {
    *r = (struct region){.n = {1, 1, 1}};
    if (s->whole) return true;
    return info->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL ? tail_of(s, info, r) : level_of(s, info, r);
}

static struct sparse *resource_of(const CUarrayMapInfo *info) {
    if (info->resourceType == CU_RESOURCE_TYPE_ARRAY) return array_tiles(info->resource.array);
    if (info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) return mipmap_tiles(info->resource.mipmap);
    return NULL;
}

static bool good(const CUarrayMapInfo *info, CUdevice device) {
    struct sparse *s = resource_of(info);
    struct region r;
    if (!s || info->flags || info->reserved[0] || info->reserved[1] || info->deviceBitMask != 1u << device ||
        !region_of(s, info, &r))
        return false;
    CUmemGenericAllocationHandle h = info->memHandle.memHandle;
    size_t bytes = s->whole ? s->bytes : r.n[0] * r.n[1] * r.n[2] * TILE;
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) return !h;
    return info->memOperationType == CU_MEM_OPERATION_TYPE_MAP && info->memHandleType == CU_MEM_HANDLE_TYPE_GENERIC &&
           info->offset % TILE == 0 && vmm_has_tiles(vmm_physical(h), device, info->offset, bytes);
}

static void apply(const CUarrayMapInfo *info) {
    struct sparse *s = resource_of(info);
    struct region r;
    region_of(s, info, &r);
    struct physical *p = info->memOperationType == CU_MEM_OPERATION_TYPE_MAP ? vmm_physical(info->memHandle.memHandle) : NULL;
    for (size_t z = 0; z < r.n[2]; z++)
        for (size_t y = 0; y < r.n[1]; y++)
            for (size_t x = 0; x < r.n[0]; x++) {
                struct physical **of = &s->of[r.base + (r.from[2] + z) * r.plane + (r.from[1] + y) * r.row + r.from[0] + x];
                struct physical *before = *of;
                if (p) vmm_hold(p);
                *of = p;
                if (before) vmm_let_go(before);
            }
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    CUstream s;
    NEED(list && count);
    CHECK(context_stream(stream, &s));
    if (s->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    bool ok = true;
    va_lock();
    for (unsigned i = 0; ok && i < count; i++) ok = good(&list[i], s->ctx->ordinal);
    for (unsigned i = 0; ok && i < count; i++) apply(&list[i]);
    va_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

PTSZ(cuMemMapArrayAsync);
