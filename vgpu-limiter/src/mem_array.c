// SPDX-License-Identifier: Apache-2.0
//
// Arrays and mipmapped arrays.
//
// The driver says what an array will take if it is asked with a twin whose memory
// is to be mapped later: such arrays (deferred, sparse) take none of their own,
// and what is mapped under them is charged by mem_vmm.c. A driver from before CUDA
// 11.6, or a format that can't be deferred, leaves only the description: rows
// rounded up.

#include "memory.h"

// Bytes of one texel; of a format that this release doesn't know, the most that
// any has.
static uint64_t texel(int format, unsigned channels) {
    if (format >= 0x91 && format <= 0x9e) // block-compressed: at most 16 bytes for 16 texels
        return 1;
    switch (format) {
    case 0x01: // 8-bit integers
    case 0x08:
        return channels;
    case 0x02: // 16-bit integers, half
    case 0x09:
    case 0x10:
        return 2 * (uint64_t)channels;
    default:
        return 4 * (uint64_t)channels;
    }
}

static uint64_t level_bytes(const struct cu_array3d_desc *desc, unsigned level) {
    uint64_t extent[3] = {desc->width, desc->height, desc->depth};
    bool layers = (desc->flags & (CU_ARRAY_LAYERED | CU_ARRAY_CUBEMAP)) != 0;
    uint64_t bytes = texel(desc->format, desc->channels);
    for (int i = 0; i < 3; i++) {
        uint64_t n = i == 2 && layers ? extent[i] : extent[i] >> level;
        bytes = vgpu_times(bytes, n != 0 ? n : 1);
        if (i == 0)
            bytes = vgpu_round(bytes);
    }
    return bytes;
}

static uint64_t array_bytes(const struct cu_array3d_desc *desc, unsigned levels) {
    if (desc == NULL || (desc->flags & (CU_ARRAY_SPARSE | CU_ARRAY_DEFERRED)) != 0)
        return 0; // NULL: the driver says what is wrong
    uint64_t sum = 0;
    for (unsigned level = 0; level < levels && level < 64; level++)
        if (__builtin_add_overflow(sum, level_bytes(desc, level), &sum))
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
    if (VGPU_REAL(cuCtxGetDevice)(&device) != CU_OK)
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

// What to charge for an array, or for a mipmapped one of so many levels.
static uint64_t needs(const struct cu_array3d_desc *desc, unsigned levels, bool mipmapped) {
    cu_result why;
    uint64_t described = array_bytes(desc, levels);
    if (described == 0 || vgpu_process(&why) == NULL)
        return described;
    uint64_t bytes = asked(desc, levels, mipmapped);
    return bytes != 0 ? bytes : described;
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
    uint64_t bytes = needs(&solid, 1, false);
    if (vgpu_begin(&call, bytes) != CU_OK)
        return call.result;
    call.result = VGPU_REAL(cuArrayCreate_v2)(array, desc);
    if (!vgpu_keep(&call, call.result == CU_OK ? vgpu_key(VGPU_ARRAY, (uintptr_t)*array) : 0, bytes))
        VGPU_REAL(cuArrayDestroy)(*array);
    return call.result;
}

cu_result cuArray3DCreate_v2(cu_array *array, const struct cu_array3d_desc *desc) {
    struct vgpu_call call;
    uint64_t bytes = needs(desc, 1, false);
    if (vgpu_begin(&call, bytes) != CU_OK)
        return call.result;
    call.result = VGPU_REAL(cuArray3DCreate_v2)(array, desc);
    if (!vgpu_keep(&call, call.result == CU_OK ? vgpu_key(VGPU_ARRAY, (uintptr_t)*array) : 0, bytes))
        VGPU_REAL(cuArrayDestroy)(*array);
    return call.result;
}

cu_result cuArrayDestroy(cu_array array) {
    struct vgpu_release release;
    vgpu_release_begin(&release, vgpu_key(VGPU_ARRAY, (uintptr_t)array));
    cu_result result = VGPU_REAL(cuArrayDestroy)(array);
    vgpu_release_end(&release, result);
    return result;
}

cu_result cuMipmappedArrayCreate(cu_mipmap *mipmap, const struct cu_array3d_desc *desc,
                                 unsigned levels) {
    struct vgpu_call call;
    uint64_t bytes = needs(desc, levels, true);
    if (vgpu_begin(&call, bytes) != CU_OK)
        return call.result;
    call.result = VGPU_REAL(cuMipmappedArrayCreate)(mipmap, desc, levels);
    if (!vgpu_keep(&call, call.result == CU_OK ? vgpu_key(VGPU_MIPMAP, (uintptr_t)*mipmap) : 0, bytes))
        VGPU_REAL(cuMipmappedArrayDestroy)(*mipmap);
    return call.result;
}

cu_result cuMipmappedArrayDestroy(cu_mipmap mipmap) {
    struct vgpu_release release;
    vgpu_release_begin(&release, vgpu_key(VGPU_MIPMAP, (uintptr_t)mipmap));
    cu_result result = VGPU_REAL(cuMipmappedArrayDestroy)(mipmap);
    vgpu_release_end(&release, result);
    return result;
}
