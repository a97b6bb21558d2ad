// SPDX-License-Identifier: Apache-2.0
//
// Arrays and mipmapped arrays.
//
// The driver says what an array will take if it is asked with a twin whose memory
// is to be mapped later: such arrays (deferred, sparse) take none of their own,
// and what is mapped under them is charged apart (mem_sparse.c). A driver from before CUDA
// 11.6, or a format that can't be deferred, leaves only the description: rows
// rounded up.
//
// Invariant: the driver sees neither an array nor its twin before the texels alone
// are charged, so that a driver that gives the twin memory after all stays within
// the limit.

#include "memory/vmm.h"

// What of an array's description is counted.
enum measure { TEXELS, ROWS };

// Bytes of one texel. Of a format that this release doesn't know: none, or the
// most that any has.
static uint64_t texel(int format, unsigned channels, enum measure measure) {
    if (format >= 0x91 && format <= 0x9e) // block-compressed: at most 16 bytes for 16 texels
        return measure == ROWS ? 1 : 0;
    switch (format) {
    case 0x01: // 8-bit integers
    case 0x08:
        return channels;
    case 0x02: // 16-bit integers, half
    case 0x09:
    case 0x10:
        return 2 * (uint64_t)channels;
    case 0x03: // 32-bit integers, float
    case 0x0a:
    case 0x20:
        return 4 * (uint64_t)channels;
    default:
        return measure == ROWS ? 4 * (uint64_t)channels : 0;
    }
}

static uint64_t level_bytes(const struct cu_array3d_desc *desc, unsigned level, enum measure measure) {
    uint64_t extent[3] = {desc->width, desc->height, desc->depth};
    bool layers = (desc->flags & (CU_ARRAY_LAYERED | CU_ARRAY_CUBEMAP)) != 0;
    uint64_t bytes = texel(desc->format, desc->channels, measure);
    for (int i = 0; i < 3; i++) {
        uint64_t n = i == 2 && layers ? extent[i] : extent[i] >> level;
        bytes = vgpu_times(bytes, n != 0 ? n : 1);
        if (i == 0 && measure == ROWS)
            bytes = vgpu_round(bytes);
    }
    return bytes;
}

static uint64_t array_bytes(const struct cu_array3d_desc *desc, unsigned levels, enum measure measure) {
    if (desc == NULL || (desc->flags & (CU_ARRAY_SPARSE | CU_ARRAY_DEFERRED)) != 0)
        return 0; // NULL: the driver says what is wrong
    uint64_t sum = 0;
    for (unsigned level = 0; level < levels && level < 64; level++)
        if (__builtin_add_overflow(sum, level_bytes(desc, level, measure), &sum))
            return UINT64_MAX;
    return sum;
}

// What the driver says that an array of this description takes; 0 if it doesn't.
static uint64_t asked(const struct cu_array3d_desc *desc, unsigned levels, bool mipmapped) {
    struct cu_array3d_desc later = *desc;
    struct cu_requirements needs = {0};
    cu_device device;
    cu_array array;
    cu_mipmap mipmap;
    later.flags |= CU_ARRAY_DEFERRED;
    if (!vgpu_has(mipmapped ? VGPU_cuMipmappedArrayGetMemoryRequirements
                            : VGPU_cuArrayGetMemoryRequirements) ||
        VGPU_REAL(cuCtxGetDevice)(&device) != CU_OK)
        return 0;
    if (mipmapped && VGPU_REAL(cuMipmappedArrayCreate)(&mipmap, &later, levels) == CU_OK) {
        VGPU_REAL(cuMipmappedArrayGetMemoryRequirements)(&needs, mipmap, device);
        VGPU_REAL(cuMipmappedArrayDestroy)(mipmap);
    }
    if (!mipmapped && VGPU_REAL(cuArray3DCreate_v2)(&array, &later) == CU_OK) {
        VGPU_REAL(cuArrayGetMemoryRequirements)(&needs, array, device);
        VGPU_REAL(cuArrayDestroy)(array);
    }
    return needs.size;
}

// Charges what an array, or a mipmapped one of so many levels, needs.
static cu_result begin(struct vgpu_call *call, const struct cu_array3d_desc *desc, unsigned levels,
                       bool mipmapped, uint64_t *bytes) {
    *bytes = array_bytes(desc, levels, ROWS);
    if (vgpu_begin(call, array_bytes(desc, levels, TEXELS)) != CU_OK || *bytes == 0)
        return call->result;
    uint64_t said = asked(desc, levels, mipmapped);
    if (said != 0)
        *bytes = said;
    return vgpu_raise(call, *bytes);
}

static bool commit(struct vgpu_call *call, enum vgpu_class class, void *array, uint64_t bytes) {
    struct vgpu_entry old;
    if (vgpu_table_take(&call->process->table, vgpu_key(VGPU_SPARSE, (uintptr_t)array), &old))
        vgpu_sparse_end(call->process, (struct vgpu_record *)(uintptr_t)old.value); // of an array that had this handle
    return vgpu_commit(call, vgpu_key(class, (uintptr_t)array), bytes);
}

static struct cu_array3d_desc in_3d(const struct cu_array_desc *desc) {
    return (struct cu_array3d_desc){.width = desc->width,
                                    .height = desc->height,
                                    .format = desc->format,
                                    .channels = desc->channels};
}

cu_result cuArrayCreate_v2(cu_array *array, const struct cu_array_desc *desc) {
    struct vgpu_call call;
    struct cu_array3d_desc solid = {0};
    if (desc != NULL)
        solid = in_3d(desc);
    uint64_t bytes;
    if (begin(&call, desc != NULL ? &solid : NULL, 1, false, &bytes) != CU_OK)
        return call.result;
    call.result = VGPU_REAL(cuArrayCreate_v2)(array, desc);
    if (!commit(&call, VGPU_ARRAY, call.result == CU_OK ? *array : NULL, bytes))
        VGPU_REAL(cuArrayDestroy)(*array);
    return call.result;
}

cu_result cuArray3DCreate_v2(cu_array *array, const struct cu_array3d_desc *desc) {
    struct vgpu_call call;
    uint64_t bytes;
    if (begin(&call, desc, 1, false, &bytes) != CU_OK)
        return call.result;
    call.result = VGPU_REAL(cuArray3DCreate_v2)(array, desc);
    if (!commit(&call, VGPU_ARRAY, call.result == CU_OK ? *array : NULL, bytes))
        VGPU_REAL(cuArrayDestroy)(*array);
    return call.result;
}

static cu_result destroy(enum vgpu_class class, enum vgpu_hook hook, void *array) {
    cu_result result, (*real)(void *) = vgpu_real(hook);
    struct vgpu_release release, under;
    vgpu_release_begin(&release, vgpu_key(class, (uintptr_t)array));
    vgpu_release_begin(&under, vgpu_key(VGPU_SPARSE, (uintptr_t)array));
    result = real(array);
    if (under.process != NULL && result == CU_OK)
        vgpu_sparse_end(under.process, (struct vgpu_record *)(uintptr_t)under.entry.value);
    else if (under.process != NULL)
        vgpu_table_put(&under.process->table, &under.entry, &(struct vgpu_entry){0});
    vgpu_release_end(&release, result);
    return result;
}

cu_result cuArrayDestroy(cu_array array) { return destroy(VGPU_ARRAY, VGPU_cuArrayDestroy, array); }

cu_result cuMipmappedArrayCreate(cu_mipmap *mipmap, const struct cu_array3d_desc *desc,
                                 unsigned levels) {
    struct vgpu_call call;
    uint64_t bytes;
    if (begin(&call, desc, levels, true, &bytes) != CU_OK)
        return call.result;
    call.result = VGPU_REAL(cuMipmappedArrayCreate)(mipmap, desc, levels);
    if (!commit(&call, VGPU_MIPMAP, call.result == CU_OK ? *mipmap : NULL, bytes))
        VGPU_REAL(cuMipmappedArrayDestroy)(*mipmap);
    return call.result;
}

cu_result cuMipmappedArrayDestroy(cu_mipmap mipmap) {
    return destroy(VGPU_MIPMAP, VGPU_cuMipmappedArrayDestroy, mipmap);
}
