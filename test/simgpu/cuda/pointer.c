// SPDX-License-Identifier: Apache-2.0
//
// pointer.c: what is known about an address.
//
// Invariant: of an address that is no device memory of this process, only
// questions that have an answer for it are answered; the others are
// INVALID_VALUE, as in the real driver for plain host memory.
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>

static int ordinal_of(unsigned dev) {
    for (int i = 0; i < ordinal_count; i++)
        if (ordinals[i].dev == dev) return i;
    return CU_DEVICE_INVALID;
}

static CUresult answer(const struct block *b, CUpointer_attribute attribute, CUdeviceptr at,
                       void *data) {
    bool managed = b->kind == BLOCK_MANAGED;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = b->ctx; break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = CU_MEMORYTYPE_DEVICE; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = at; break;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (!managed) return CUDA_ERROR_INVALID_VALUE;
            *(void **)data = (void *)(uintptr_t)at;
            break;
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: *(int *)data = 0; break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = b->id; break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(int *)data = managed; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = ordinal_of(b->dev); break;
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)data = 0; break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = b->at; break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = b->size; break;
        case CU_POINTER_ATTRIBUTE_MAPPED: *(int *)data = b->kind != BLOCK_RESERVED; break;
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(unsigned long long *)data = 0; break;
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)data = b->pool; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr at) {
    NEED(data);
    INITIALIZED;
    va_lock();
    struct block *b = va_around(at);
    CUresult ret = b ? answer(b, attribute, at, data) : CUDA_ERROR_INVALID_VALUE;
    va_unlock();
    return ret;
}

// The plural form never fails for an address it does not know: it clears.
CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr at) {
    NEED(n && attributes && data);
    INITIALIZED;
    for (unsigned i = 0; i < n; i++) {
        if (cuPointerGetAttribute(data[i], attributes[i], at) == CUDA_SUCCESS) continue;
        switch (attributes[i]) {
            case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            case CU_POINTER_ATTRIBUTE_MAPPED: memset(data[i], 0, sizeof(int)); break;
            case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data[i] = CU_DEVICE_INVALID; break;
            default: memset(data[i], 0, sizeof(void *));
        }
    }
    return CUDA_SUCCESS;
}
