// SPDX-License-Identifier: Apache-2.0
//
// array.c: CUDA arrays and mipmapped arrays, and copies that touch them.
//
// Invariants:
// - An array is charged the bytes of its elements, each row rounded up to 64 and
//   the whole to 512; a mipmapped array the sum of its levels.
// - One that is sparse or whose mapping is deferred has no memory of its own
//   (sparse.c); as with the real driver only the latter tells its requirements.
// - An array ends with its context.
// - Arrays have no contents: copies into them are forgotten, copies out of them
//   give zeros.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <string.h>

struct CUarray_st {
    CUDA_ARRAY3D_DESCRIPTOR desc;
    unsigned dev;
    size_t charged;
    bool level;  // of a mipmapped array, which owns it
    CUcontext ctx;
    struct sparse *tiles;  // NULL for one with memory of its own
    struct CUarray_st *next;
};

struct CUmipmappedArray_st {
    unsigned dev, levels;
    size_t size, charged;
    CUcontext ctx;
    struct sparse *tiles;
    struct CUmipmappedArray_st *next;
    struct CUarray_st level[32];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static CUarray arrays;
static CUmipmappedArray mipmaps;

// LINK and UNLINK keep the lists of all arrays; UNLINK tells whether it was there.
#define LINK(list, a)                 \
    do {                              \
        pthread_mutex_lock(&mutex);   \
        (a)->next = list;             \
        list = (a);                   \
        pthread_mutex_unlock(&mutex); \
    } while (0)
#define UNLINK(list, a)                                      \
    ({                                                       \
        pthread_mutex_lock(&mutex);                          \
        __typeof__(list) *at_ = &list;                       \
        while (*at_ && *at_ != (a)) at_ = &(*at_)->next;     \
        bool found_ = *at_ != NULL;                          \
        if (found_) *at_ = (a)->next;                        \
        pthread_mutex_unlock(&mutex);                        \
        found_;                                              \
    })

struct sparse *array_tiles(CUarray array) { return array && !array->level ? array->tiles : NULL; }
struct sparse *mipmap_tiles(CUmipmappedArray mipmap) { return mipmap ? mipmap->tiles : NULL; }

static size_t element(CUarray_format f, unsigned channels) {
    switch (f) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8: return channels;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF: return channels * 2u;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT: return channels * 4u;
    }
    return 0;
}

// footprint gives the bytes of an array, 0 for a descriptor that is wrong.
static size_t footprint(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    size_t e = element(d->Format, d->NumChannels), height = d->Height ? d->Height : 1;
    size_t depth = d->Depth ? d->Depth : 1, bytes;
    bool ok = e && d->Width && (d->NumChannels == 1 || d->NumChannels == 2 || d->NumChannels == 4) &&
              d->Width <= 1u << 20 && height <= 1u << 20 && depth <= 1u << 16;
    if (!ok || __builtin_mul_overflow((d->Width * e + 63) & ~(size_t)63, height * depth, &bytes)) return 0;
    return va_round(bytes);
}

static bool deferred(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    return d->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING;
}

static bool later(const CUDA_ARRAY3D_DESCRIPTOR *d) { return deferred(d) || d->Flags & CUDA_ARRAY3D_SPARSE; }

static bool tiles_of(struct sparse **tiles, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels, size_t bytes) {
    bool both = deferred(d) && d->Flags & CUDA_ARRAY3D_SPARSE;
    *tiles = later(d) && !both ? sparse_new(d, element(d->Format, d->NumChannels), levels, bytes) : NULL;
    return !later(d) || *tiles;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc) {
    CUcontext ctx;
    NEED(array && desc && footprint(desc));
    CHECK(need_context(&ctx));
    struct sparse *tiles;
    NEED(tiles_of(&tiles, desc, 1, footprint(desc)));
    CUarray a = calloc(1, sizeof *a);
    size_t bytes = later(desc) ? 0 : footprint(desc);
    if (!a || !sim_charge(cu, me, ctx->dev, bytes)) {
        free(a);
        sparse_end(tiles);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *a = (struct CUarray_st){.desc = *desc, .dev = ctx->dev, .charged = bytes, .ctx = ctx, .tiles = tiles};
    LINK(arrays, a);
    *array = a;
    return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    NEED(d);
    CUDA_ARRAY3D_DESCRIPTOR desc = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
    return cuArray3DCreate_v2(array, &desc);
}

CUresult cuArrayDestroy(CUarray array) {
    INITIALIZED;
    if (!array || !UNLINK(arrays, array)) return CUDA_ERROR_INVALID_HANDLE;
    sim_uncharge(me, array->dev, array->charged);
    sparse_end(array->tiles);
    free(array);
    return CUDA_SUCCESS;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *desc, CUarray array) {
    NEED(desc);
    INITIALIZED;
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    *desc = array->desc;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *need, CUarray array,
                                      CUdevice dev) {
    struct ordinal *o;
    NEED(need && array && deferred(&array->desc));
    CHECK(need_device(dev, &o));
    memset(need, 0, sizeof *need);
    need->size = footprint(&array->desc);
    need->alignment = 512;
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *desc,
                                unsigned int levels) {
    CUcontext ctx;
    NEED(mipmap && desc && footprint(desc) && levels && levels <= 32);
    CHECK(need_context(&ctx));
    CUmipmappedArray m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    m->dev = ctx->dev;
    CUDA_ARRAY3D_DESCRIPTOR d = *desc;
    for (bool last = false; m->levels < levels && !last; m->levels++) {
        m->level[m->levels] = (struct CUarray_st){.desc = d, .dev = ctx->dev, .charged = footprint(&d), .level = true};
        m->size += m->level[m->levels].charged;
        last = d.Width <= 1 && d.Height <= 1 && d.Depth <= 1;
        if (d.Width > 1) d.Width /= 2;
        if (d.Height > 1) d.Height /= 2;
        if (d.Depth > 1 && !(d.Flags & CUDA_ARRAY3D_LAYERED)) d.Depth /= 2;
    }
    m->charged = later(desc) ? 0 : m->size;
    m->ctx = ctx;
    if (!tiles_of(&m->tiles, desc, m->levels, m->size)) {
        free(m);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!sim_charge(cu, me, m->dev, m->charged)) {
        sparse_end(m->tiles);
        free(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    LINK(mipmaps, m);
    *mipmap = m;
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray mipmap, unsigned int level) {
    NEED(array && mipmap && level < mipmap->levels);
    INITIALIZED;
    *array = &mipmap->level[level];
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *need,
                                               CUmipmappedArray mipmap, CUdevice dev) {
    struct ordinal *o;
    NEED(need && mipmap && deferred(&mipmap->level[0].desc));
    CHECK(need_device(dev, &o));
    memset(need, 0, sizeof *need);
    need->size = mipmap->size;
    need->alignment = 512;
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
    INITIALIZED;
    if (!mipmap || !UNLINK(mipmaps, mipmap)) return CUDA_ERROR_INVALID_HANDLE;
    sim_uncharge(me, mipmap->dev, mipmap->charged);
    sparse_end(mipmap->tiles);
    free(mipmap);
    return CUDA_SUCCESS;
}

void arrays_die(CUcontext ctx) {
    for (CUarray a;;) {
        pthread_mutex_lock(&mutex);
        for (a = arrays; a && a->ctx != ctx; a = a->next) {}
        pthread_mutex_unlock(&mutex);
        if (!a || cuArrayDestroy(a) != CUDA_SUCCESS) break;
    }
    for (CUmipmappedArray m;;) {
        pthread_mutex_lock(&mutex);
        for (m = mipmaps; m && m->ctx != ctx; m = m->next) {}
        pthread_mutex_unlock(&mutex);
        if (!m || cuMipmappedArrayDestroy(m) != CUDA_SUCCESS) break;
    }
}

static CUresult into(CUarray array, size_t offset, size_t n) {
    CUcontext ctx;
    CHECK(need_context(&ctx));
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    return offset <= array->charged && n <= array->charged - offset ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_INVALID_VALUE;
}

static CUresult zeros(void *to, CUarray from, size_t offset, size_t n) {
    CHECK(into(from, offset, n));
    memset(to, 0, n);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t n) {
    NEED(va_contains(from));
    NOW(n, into(to, offset, n));
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t n) {
    CHECK(into(from, offset, n));
    return cuMemsetD8_v2(to, 0, n);
}

CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t n) {
    NEED(from);
    NOW(n, into(to, offset, n));
}

CUresult cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t n) {
    NEED(to);
    NOW(n, zeros(to, from, offset, n));
}

CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t n) {
    CHECK(into(from, from_offset, n));
    NOW(n, into(to, to_offset, n));
}

CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void *from, size_t n,
                              CUstream stream) {
    NEED(from);
    LATER(stream, CU_GRAPH_NODE_TYPE_MEMCPY, n, into(to, offset, n));
}

CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t n, CUstream stream) {
    NEED(to);
    LATER(stream, CU_GRAPH_NODE_TYPE_MEMCPY, n, zeros(to, from, offset, n));
}

PTDS(cuMemcpyDtoA_v2);
PTDS(cuMemcpyAtoD_v2);
PTDS(cuMemcpyHtoA_v2);
PTDS(cuMemcpyAtoH_v2);
PTDS(cuMemcpyAtoA_v2);
PTSZ(cuMemcpyHtoAAsync_v2);
PTSZ(cuMemcpyAtoHAsync_v2);
