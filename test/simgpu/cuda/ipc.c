// SPDX-License-Identifier: Apache-2.0
//
// ipc.c: memory of another process.
//
// Invariants:
// - Opening costs no memory while the owner has it: the owner pays. It gives an
//   address with the owner's size; the contents are not shared.
// - What has been opened lasts until it is closed, whatever the owner does.
// - A handle can be opened only while its owner lives and, but for virtual memory,
//   not by its owner.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TICKET 0x7469636b65747632ull

struct ticket ticket_new(unsigned kind, unsigned dev, unsigned long long id, size_t size) {
    return (struct ticket){TICKET, kind, {(uint32_t)(me - cu->clients), atomic_load(&me->generation), dev, 0, id, size}};
}

bool ticket_good(const struct ticket *t, unsigned kind) {
    return t->magic == TICKET && t->kind == kind && t->memory.slot < SIM_MAX_CLIENTS &&
           t->memory.dev < cu->device_count;
}

int ticket_to_fd(const void *content, size_t size) {
    int fd = memfd_create("simgpu", MFD_CLOEXEC);
    if (fd >= 0 && pwrite(fd, content, size, 0) == (ssize_t)size) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

bool ticket_from_fd(int fd, void *content, size_t size) {
    off_t at = lseek(fd, 0, SEEK_CUR);
    return at >= 0 && pread(fd, content, size, at) == (ssize_t)size;
}

CUresult ticket_open(const struct ticket *t, CUcontext ctx, CUmemoryPool pool, CUdeviceptr *at) {
    if (&cu->clients[t->memory.slot] == me) return CUDA_ERROR_INVALID_CONTEXT;
    int hold = sim_hold_add(cu, me, &t->memory, false);
    if (hold < 0) return CUDA_ERROR_INVALID_HANDLE;
    va_lock();
    struct block *b = va_take(t->memory.size, 512);
    if (b) {
        b->kind = BLOCK_IPC;
        b->dev = t->memory.dev;
        b->ctx = ctx;
        b->pool = pool;
        b->hold = hold;
        va_insert(b);
        *at = b->at;
    }
    va_unlock();
    if (!b) sim_hold_drop(cu, hold);
    return b ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at) {
    NEED(handle);
    INITIALIZED;
    va_lock();
    struct block *b = va_find(at);
    bool ok = b && b->kind == BLOCK_PLAIN;
    struct ticket t = ticket_new(TICKET_IPC, ok ? b->dev : 0, ok ? b->id : 0, ok ? b->size : 0);
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
    NEED(ticket_good(&t, TICKET_IPC));
    return ticket_open(&t, ctx, NULL, at);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *at, CUipcMemHandle handle, unsigned int flags) {
    return cuIpcOpenMemHandle_v2(at, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr at) {
    INITIALIZED;
    va_lock();
    struct block *b = va_find(at);
    bool ok = b && b->kind == BLOCK_IPC && !b->pool;
    int hold = ok ? b->hold : -1;
    if (ok) {
        va_remove(b);
        backing_drop(b);
        va_give(b);
    }
    va_unlock();
    if (hold >= 0) sim_hold_drop(cu, hold);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Memory of other drivers: it can be imported and let go of, and takes none of the
// device's, since there is no such driver; its contents cannot be reached.
struct CUextMemory_st {
    uint64_t size;
};

CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
    CUcontext ctx;
    NEED(memory && desc && desc->size);
    CHECK(need_context(&ctx));
    if (desc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
    CUexternalMemory m = malloc(sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    m->size = desc->size;
    *memory = m;
    return CUDA_SUCCESS;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory) {
    INITIALIZED;
    if (!memory) return CUDA_ERROR_INVALID_HANDLE;
    free(memory);
    return CUDA_SUCCESS;
}
