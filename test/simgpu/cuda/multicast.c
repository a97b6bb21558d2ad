// SPDX-License-Identifier: Apache-2.0
//
// multicast.c: multicast objects: memory of several devices under one name.
//
// Invariants:
// - An object has no memory of its own; it keeps what is bound to it until that is
//   unbound, or the object's last handle and mapping are gone.
// - Only devices whose switches multicast are added. A binding waits until the object
//   has all its devices; one that comes from another process has them.
// - What it does, writing to all devices at once, is not modelled, nor is what another
//   process has bound.
// - Everything here is guarded by va_lock.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>

#define GRANULE ((size_t)2 << 20)

struct binding {
    struct physical *of;
    CUdevice device;
    size_t at, size;
    struct binding *next;
};

struct multicast {
    size_t size;
    unsigned devices;          // that are still to be added
    uint32_t added;            // one bit each
    unsigned long long types;  // of handles to others
    struct binding *bindings;
};

unsigned long long multicast_types(const struct multicast *m) { return m->types; }

static void unbind(struct binding **p) {
    struct binding *b = *p;
    *p = b->next;
    vmm_let_go(b->of);
    free(b);
}

void multicast_end(struct multicast *m) {
    while (m->bindings) unbind(&m->bindings);
    free(m);
}

static struct multicast *find(CUmemGenericAllocationHandle handle) {
    struct physical *p = vmm_physical(handle);
    return p ? vmm_multicast(p) : NULL;
}

static CUresult make(CUmemGenericAllocationHandle *handle, struct multicast with) {
    struct multicast *m = malloc(sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    *m = with;
    CUresult ret = vmm_object(handle, m, with.size);
    if (ret != CUDA_SUCCESS) free(m);
    return ret;
}

CUresult multicast_import(CUmemGenericAllocationHandle *handle, size_t size, unsigned long long types) {
    return make(handle, (struct multicast){.size = size, .types = types, .added = UINT32_MAX});
}

CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop,
                                   CUmemAllocationGranularity_flags option) {
    (void)option;
    NEED(granularity && prop);
    INITIALIZED;
    *granularity = GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop) {
    NEED(handle && prop && prop->size && prop->size % GRANULE == 0 && prop->numDevices && !prop->flags);
    INITIALIZED;
    return make(handle, (struct multicast){.size = prop->size, .devices = prop->numDevices, .types = prop->handleTypes});
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice dev) {
    struct ordinal *o;
    CHECK(need_device(dev, &o));
    if (o->gi != SIM_WHOLE_GPU || !sim_multicast(cu, o->dev)) return CUDA_ERROR_NOT_SUPPORTED;
    va_lock();
    struct multicast *m = find(handle);
    bool ok = m && m->devices && !(m->added >> dev & 1);
    if (ok) {
        m->added |= 1u << dev;
        m->devices--;
        va_wake();
    }
    va_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// bind wants va_lock held, and lets go of it.
static CUresult bind(CUmemGenericAllocationHandle handle, size_t at, struct physical *p, size_t size) {
    struct physical *object = vmm_physical(handle);
    struct multicast *m = find(handle);
    bool ok = m && p && !vmm_multicast(p) && size % GRANULE == 0 && at % GRANULE == 0 && at + size <= m->size;
    struct binding *b = ok ? malloc(sizeof *b) : NULL;
    if (b) {
        *b = (struct binding){p, vmm_hold(p), at, size, NULL};
        vmm_hold(object);
        while (m->devices) va_wait();
        b->next = m->bindings;
        m->bindings = b;
        ok = m->added >> b->device & 1;
        if (!ok) unbind(&m->bindings);
        vmm_let_go(object);
    }
    va_unlock();
    return ok && b ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
    struct multicast *m = find(handle);
    struct binding **p = m ? &m->bindings : NULL;
    while (p && *p && ((*p)->device != dev || (*p)->at != at || (*p)->size != size)) p = &(*p)->next;
    bool ok = p && *p;
    if (ok) unbind(p);
    va_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
