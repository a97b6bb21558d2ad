// SPDX-License-Identifier: Apache-2.0
//
// Plain, pitched and managed memory.

#include "memory/memory.h"

// Managed memory is taken in pages.
#define PAGE UINT64_C(4096)

cu_result cuMemAlloc_v2(cu_ptr *ptr, size_t bytes) {
    struct vgpu_call call;
    if (vgpu_unlikely(vgpu_begin(&call, bytes) != CU_OK))
        return call.result;
    call.result = VGPU_REAL(cuMemAlloc_v2)(ptr, bytes);
    if (!vgpu_commit(&call, call.result == CU_OK ? *ptr : 0, bytes))
        VGPU_REAL(cuMemFree_v2)(*ptr);
    return call.result;
}

cu_result cuMemAllocPitch_v2(cu_ptr *ptr, size_t *pitch, size_t width, size_t height,
                             unsigned element) {
    struct vgpu_call call;
    uint64_t bound = vgpu_times(vgpu_round(width), height);
    if (vgpu_begin(&call, bound) != CU_OK)
        return call.result;
    call.result = VGPU_REAL(cuMemAllocPitch_v2)(ptr, pitch, width, height, element);
    bool ok = call.result == CU_OK;
    if (!vgpu_commit(&call, ok ? *ptr : 0, ok ? vgpu_times(*pitch, height) : 0))
        VGPU_REAL(cuMemFree_v2)(*ptr);
    return call.result;
}

cu_result cuMemAllocManaged(cu_ptr *ptr, size_t bytes, unsigned flags) {
    struct vgpu_call call;
    uint64_t pages = bytes > SIZE_MAX - PAGE ? UINT64_MAX : (bytes + PAGE - 1) & -PAGE;
    if (vgpu_begin(&call, pages) != CU_OK)
        return call.result;
    atomic_store(&call.process->nvml.managed, true);
    call.result = VGPU_REAL(cuMemAllocManaged)(ptr, bytes, flags);
    if (!vgpu_commit(&call, call.result == CU_OK ? *ptr : 0, pages))
        VGPU_REAL(cuMemFree_v2)(*ptr);
    return call.result;
}

cu_result cuMemFree_v2(cu_ptr ptr) {
    struct vgpu_release release;
    vgpu_release_begin(&release, vgpu_key(VGPU_POINTER, ptr));
    cu_result result = VGPU_REAL(cuMemFree_v2)(ptr);
    vgpu_release_end(&release, result);
    return result;
}

// The 32-bit forms never reach the driver.
static cu_result refuse_32_bit(void) {
    VGPU_LOG_ONCE("CUDA call refused: a form from before CUDA 3.2 that uses 32-bit addresses");
    return CU_NOT_SUPPORTED;
}
cu_result cuMemAlloc(void) { return refuse_32_bit(); }
cu_result cuMemAllocPitch(void) { return refuse_32_bit(); }
cu_result cuArrayCreate(void) { return refuse_32_bit(); }
cu_result cuArray3DCreate(void) { return refuse_32_bit(); }
cu_result cuMemGetInfo(void) { return refuse_32_bit(); }
cu_result cuDeviceTotalMem(void) { return refuse_32_bit(); }
