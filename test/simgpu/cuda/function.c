// SPDX-License-Identifier: Apache-2.0
//
// function.c: what a kernel can be asked and told.
#define _GNU_SOURCE
#include "internal.h"

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attrib, CUfunction f) {
    NEED(value && (unsigned)attrib < CU_FUNC_ATTRIBUTE_MAX);
    INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    switch (attrib) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 70; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = f->max_dynamic_shared; break;
        default: *value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attrib, int value) {
    NEED((unsigned)attrib < CU_FUNC_ATTRIBUTE_MAX);
    INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) f->max_dynamic_shared = value;
    return CUDA_SUCCESS;
}

static CUresult some(const void *f) {
    INITIALIZED;
    return f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache config) {
    (void)config;
    return some(f);
}

CUresult cuFuncSetSharedMemConfig(CUfunction f, CUsharedconfig config) {
    (void)config;
    return some(f);
}

CUresult cuFuncLoad(CUfunction f) {
    CHECK(some(f));
    return load_code(f);
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction f) {
    NEED(module);
    CHECK(some(f));
    if (f->module->image.text) return cuLibraryGetModule(module, (CUlibrary)f->module);
    *module = f->module;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *size) {
    CHECK(some(f));
    NEED(offset && index < f->params);
    *offset = f->param_offsets[index];
    if (size) *size = f->param_sizes[index];
    return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size) {
    return cuFuncGetParamInfo((CUfunction)kernel, index, offset, size);
}

uint64_t blocks_per_sm(const struct sim_model *m, uint64_t threads) {
    uint64_t n = threads ? m->threads_per_sm / threads : 0;
    return n < m->blocks_per_sm ? n : m->blocks_per_sm;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f,
                                                              int block_size, size_t dynamic,
                                                              unsigned int flags) {
    CUcontext ctx;
    (void)dynamic, (void)flags;
    NEED(blocks && f && block_size > 0);
    CHECK(need_context(&ctx));
    *blocks = (int)blocks_per_sm(ordinals[ctx->ordinal].m, (uint64_t)block_size);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int block_size,
                                                     size_t dynamic) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, block_size, dynamic, 0);
}
