// SPDX-License-Identifier: Apache-2.0
//
// host.c: host memory that the device may use.
//
// Invariants:
// - Host memory is the program's own and is never charged to a device.
// - Its device address is its host address (unified addressing).
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>

struct host {
    char *at;
    size_t size;
    unsigned flags;
    bool ours;
    struct host *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct host *all;

static CUresult remember(void *p, size_t size, unsigned flags, bool ours) {
    struct host *h = malloc(sizeof *h);
    if (!h) return CUDA_ERROR_OUT_OF_MEMORY;
    *h = (struct host){p, size, flags, ours, NULL};
    pthread_mutex_lock(&mutex);
    h->next = all;
    all = h;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

// forget takes the record of exactly p out and says what it was.
static bool forget(void *p, bool ours) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (struct host **at = &all; *at && !found; ) {
        struct host *h = *at;
        if (h->at == p && h->ours == ours) {
            *at = h->next;
            free(h);
            found = true;
        } else {
            at = &h->next;
        }
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

static bool known(void *p, unsigned *flags) {
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (struct host *h = all; h && !found; h = h->next)
        if ((char *)p >= h->at && (char *)p < h->at + h->size) {
            found = true;
            *flags = h->flags;
        }
    pthread_mutex_unlock(&mutex);
    return found;
}

CUresult cuMemHostAlloc(void **p, size_t size, unsigned int flags) {
    CUcontext ctx;
    NEED(p && size && flags <= 7);
    CHECK(need_context(&ctx));
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, size) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult ret = remember(memory, size, flags | CU_MEMHOSTALLOC_DEVICEMAP, true);
    if (ret == CUDA_SUCCESS)
        *p = memory;
    else
        free(memory);
    return ret;
}

CUresult cuMemAllocHost_v2(void **p, size_t size) { return cuMemHostAlloc(p, size, 0); }

CUresult cuMemFreeHost(void *p) {
    INITIALIZED;
    if (!p || !forget(p, true)) return CUDA_ERROR_INVALID_VALUE;
    free(p);
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned int flags) {
    CUcontext ctx;
    unsigned before;
    NEED(p && size && flags <= 15);
    CHECK(need_context(&ctx));
    if (known(p, &before)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    return remember(p, size, flags, false);
}

CUresult cuMemHostUnregister(void *p) {
    INITIALIZED;
    NEED(p);
    return forget(p, false) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *at, void *p, unsigned int flags) {
    unsigned f;
    NEED(at && p && !flags);
    INITIALIZED;
    if (!known(p, &f)) return CUDA_ERROR_INVALID_VALUE;
    *at = (CUdeviceptr)(uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *p) {
    NEED(flags && p);
    INITIALIZED;
    return known(p, flags) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
