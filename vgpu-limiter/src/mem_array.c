// SPDX-License-Identifier: Apache-2.0
//
// Arrays and mipmapped arrays.
//
// The driver doesn't say what an array takes, so the charge is computed from its
// description, with rows rounded up. Arrays whose memory is mapped later (sparse, deferred) take none
// of their own: what is mapped under them is charged by mem_vmm.c.

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
    uint64_t bytes = array_bytes(&solid, 1);
    if (vgpu_begin(&call, bytes) != CU_OK)
        return call.result;
    call.result = VGPU_REAL(cuArrayCreate_v2)(array, desc);
    if (!vgpu_keep(&call, call.result == CU_OK ? vgpu_key(VGPU_ARRAY, (uintptr_t)*array) : 0, bytes))
        VGPU_REAL(cuArrayDestroy)(*array);
    return call.result;
}

cu_result cuArray3DCreate_v2(cu_array *array, const struct cu_array3d_desc *desc) {
    struct vgpu_call call;
    uint64_t bytes = array_bytes(desc, 1);
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
    uint64_t bytes = array_bytes(desc, levels);
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
