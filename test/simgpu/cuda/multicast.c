// SPDX-License-Identifier: Apache-2.0
//
// multicast.c: multicast objects: memory of several devices under one name.
//
// Invariants:
// - An object has no memory of its own; it keeps what is bound to it until that is
//   unbound or the object is released.
// - What it would do, writing to all devices at once, is not modelled: it cannot be
//   mapped.
// - Everything here is guarded by va_lock.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>

struct binding {
    struct physical *of;
    CUdevice device;
    size_t at, size;
    struct binding *next;
};

struct multicast {
    size_t size;
    struct binding *bindings;
    struct multicast *next;
};

static struct multicast *objects;

static struct multicast **find(CUmemGenericAllocationHandle handle) {
    struct multicast **p = &objects;
    while (*p && (CUmemGenericAllocationHandle)(uintptr_t)*p != handle) p = &(*p)->next;
    return p;
}

static void unbind(struct binding **p) {
    struct binding *b = *p;
    *p = b->next;
    vmm_let_go(b->of);
    free(b);
}

bool multicast_release(CUmemGenericAllocationHandle handle) {
    struct multicast **p = find(handle), *m = *p;
    if (!m) return false;
    while (m->bindings) unbind(&m->bindings);
    *p = m->next;
    free(m);
    return true;
}

CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                   CUmemAllocationGranularity_flags option) {
    (void)option;
    NEED(granularity && prop);
    INITIALIZED;
    *granularity = 2 << 20;
    return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop) {
    NEED(handle && prop && prop->size && prop->numDevices);
    INITIALIZED;
    struct multicast *m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    m->size = prop->size;
    va_lock();
    m->next = objects;
    objects = m;
    va_unlock();
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)m;
    return CUDA_SUCCESS;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice dev) {
    struct ordinal *o;
    CHECK(need_device(dev, &o));
    va_lock();
    bool ok = *find(handle) != NULL;
    va_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// bind wants va_lock held, and lets go of it.
static CUresult bind(CUmemGenericAllocationHandle handle, size_t at, struct physical *p, size_t size) {
    struct multicast *m = *find(handle);
    struct binding *b = m && p && at + size <= m->size ? malloc(sizeof *b) : NULL;
    if (b) {
        *b = (struct binding){p, vmm_hold(p), at, size, m->bindings};
        m->bindings = b;
    }
    va_unlock();
    return b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at,
                            CUmemGenericAllocationHandle memory, size_t offset, size_t size,
                            unsigned long long flags) {
    (void)offset;
    NEED(size && !flags);
    INITIALIZED;
    va_lock();
    return bind(handle, at, vmm_physical(memory), size);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t at, CUdeviceptr ptr,
                             size_t size, unsigned long long flags) {
    NEED(size && !flags);
    INITIALIZED;
    va_lock();
    return bind(handle, at, vmm_behind(ptr), size);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice dev, size_t at, size_t size) {
    INITIALIZED;
    va_lock();
    struct multicast *m = *find(handle);
    struct binding **p = m ? &m->bindings : NULL;
    while (p && *p && ((*p)->device != dev || (*p)->at != at || (*p)->size != size)) p = &(*p)->next;
    bool ok = p && *p;
    if (ok) unbind(p);
    va_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
