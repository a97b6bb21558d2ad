// SPDX-License-Identifier: Apache-2.0
//
// ipc.c: memory of another process.
//
// Invariants:
// - Opening costs no memory: the owner pays. It gives an address with the
//   owner's size; the contents are not shared.
// - A handle can be opened only while its owner lives, and not by its owner.
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>

struct ticket {
    uint64_t magic;
    uint32_t slot, generation, dev;
    uint64_t size;
};

#define TICKET 0x7469636b65747631ull

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at) {
    NEED(handle);
    INITIALIZED;
    va_lock();
    struct block *b = va_find(at);
    bool ok = b && b->kind == BLOCK_PLAIN;
    struct ticket t = {TICKET, (uint32_t)(me - cu->clients), atomic_load(&me->generation),
                       ok ? b->dev : 0, ok ? b->size : 0};
    va_unlock();
    if (!ok) return CUDA_ERROR_INVALID_VALUE;
    _Static_assert(sizeof t <= sizeof handle->reserved, "ticket");
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &t, sizeof t);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipcMemHandle handle, unsigned int flags) {
    CUcontext ctx;
    struct ticket t;
    NEED(at && flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    CHECK(need_context(&ctx));
    memcpy(&t, handle.reserved, sizeof t);
    NEED(t.magic == TICKET && t.slot < SIM_MAX_CLIENTS && t.dev < cu->device_count);
    struct sim_client *owner = &cu->clients[t.slot];
    if (owner == me) return CUDA_ERROR_INVALID_CONTEXT;
    if (!atomic_load(&owner->in_use) || atomic_load(&owner->generation) != t.generation ||
        sim_client_pid(cu, owner) == 0)
        return CUDA_ERROR_INVALID_HANDLE;
    va_lock();
    struct block *b = va_take(t.size, 512);
    if (b) {
        b->kind = BLOCK_IPC;
        b->dev = t.dev;
        b->ctx = ctx;
        va_insert(b);
        *at = b->at;
    }
    va_unlock();
    return b ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr at) {
    INITIALIZED;
    va_lock();
    struct block *b = va_find(at);
    bool ok = b && b->kind == BLOCK_IPC;
    if (ok) {
        va_remove(b);
        backing_drop(b);
        va_give(b);
    }
    va_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Memory of other drivers (Vulkan, NvSci) is not modelled.
CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
    NEED(memory && desc);
    INITIALIZED;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *at, CUexternalMemory memory,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc) {
    (void)memory;
    NEED(at && desc);
    INITIALIZED;
    return CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    (void)memory;
    INITIALIZED;
    return CUDA_ERROR_INVALID_HANDLE;
}
