// SPDX-License-Identifier: Apache-2.0
//
// vmm.c: virtual memory management: reserve, create, map.
//
// Invariants:
// - Creating charges, whole granules only; reserving and mapping do not.
// - A handle's memory is given back when it has been released as often as it
//   was created or retained AND its last mapping is gone, AND no descriptor that
//   it was exported to is open in any process (holds.c).
// - A reservation is a block of kind BLOCK_RESERVED; mappings inside it are
//   blocks of kind BLOCK_MAPPED, never overlapping. An address range is freed
//   only when nothing is mapped in it.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define GRANULE ((size_t)2 << 20)

struct physical {
    size_t size;
    unsigned dev;
    CUmemAllocationProp prop;
    unsigned holders, mappings;
    unsigned long long id;
    int hold;  // on another process's memory, -1 for none
    struct multicast *over;  // not NULL: what is bound to it is its memory
    struct physical *next;
};

// Mappings lie at addresses of their reservation: a list finds them, since the
// hash holds the reservation under the first one's address.
struct mapping {
    struct block block;
    struct physical *of;
    struct mapping *next;
};

static struct physical *all;
static struct mapping *mappings;

struct physical *vmm_physical(CUmemGenericAllocationHandle h) {
    for (struct physical *p = all; p; p = p->next)
        if ((CUmemGenericAllocationHandle)(uintptr_t)p == h && p->holders) return p;
    return NULL;
}

// give_back drops p when nobody holds it. The caller holds va_lock.
static void give_back(struct physical *p) {
    if (p->holders || p->mappings) return;
    for (struct physical **at = &all; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    if (p->over) {
        multicast_end(p->over);
    } else if (p->hold >= 0) {
        sim_hold_drop(cu, p->hold);
    } else {
        sim_hold_freed(cu, me, p->id, p->dev, p->size);
    }
    free(p);
}

bool vmm_has_tiles(const struct physical *p, CUdevice device, size_t offset, size_t bytes) {
    return p && p->prop.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL && p->prop.location.id == device &&
           offset <= p->size && bytes <= p->size - offset;
}

CUdevice vmm_hold(struct physical *p) {
    p->mappings++;
    return p->prop.location.id;
}

void vmm_let_go(struct physical *p) {
    p->mappings--;
    give_back(p);
}

static void add(CUmemGenericAllocationHandle *handle, struct physical *p, struct physical is) {
    va_lock();
    *p = is;
    p->holders = 1;
    p->id = va_id();
    p->next = all;
    all = p;
    va_unlock();
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)p;
}

CUresult vmm_object(CUmemGenericAllocationHandle *handle, struct multicast *m, size_t size) {
    struct physical *p = malloc(sizeof *p);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    add(handle, p, (struct physical){.size = size, .over = m, .hold = -1});
    return CUDA_SUCCESS;
}

struct multicast *vmm_multicast(struct physical *p) { return p->over; }

// is_fabric reports whether a device's memory can be had on other machines.
static bool is_fabric(const struct sim_device *d) {
    static const uint8_t alone[sizeof d->place.cluster];
    return d->place.fabric && memcmp(d->place.cluster, alone, sizeof alone) != 0;
}

static CUresult check_prop(const CUmemAllocationProp *prop, struct ordinal **o) {
    NEED(prop && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED);
    INITIALIZED;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    return need_device(prop->location.id, o);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
    struct ordinal *o;
    NEED(granularity && (unsigned)option <= CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    CHECK(check_prop(prop, &o));
    *granularity = GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *prop, unsigned long long flags) {
    struct ordinal *o;
    NEED(handle && size && size % GRANULE == 0 && !flags);
    CHECK(check_prop(prop, &o));
    CHECK(lost_or(o->dev, CUDA_SUCCESS));
    if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC && !is_fabric(o->d)) return CUDA_ERROR_NOT_PERMITTED;
    struct physical *p = malloc(sizeof *p);
    if (!p) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!sim_charge(cu, me, o->dev, size)) {
        free(p);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    add(handle, p, (struct physical){.size = size, .dev = o->dev, .prop = *prop, .hold = -1});
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    INITIALIZED;
    va_lock();
    struct physical *p = vmm_physical(handle);
    if (p) {
        p->holders--;
        give_back(p);
    }
    va_unlock();
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAddressReserve(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
    (void)hint;  // only a wish
    NEED(at && size && size % GRANULE == 0 && !flags && !(alignment & (alignment - 1)));
    INITIALIZED;
    va_lock();
    struct block *b = va_take(size, alignment > GRANULE ? alignment : GRANULE);
    if (b) {
        b->kind = BLOCK_RESERVED;
        va_insert(b);
        *at = b->at;
    }
    va_unlock();
    return b ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool apart(CUdeviceptr a, size_t n, CUdeviceptr b, size_t m) {
    return a + n <= b || b + m <= a;
}

static bool anything_mapped(CUdeviceptr at, size_t size) {
    for (struct mapping *m = mappings; m; m = m->next)
        if (!apart(at, size, m->block.at, m->block.size)) return true;
    return false;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t size) {
    INITIALIZED;
    va_lock();
    struct block *b = va_find(at);
    bool ok = b && b->kind == BLOCK_RESERVED && b->size == size && !anything_mapped(at, size);
    if (ok) {
        va_remove(b);
        va_give(b);
    }
    va_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    NEED(size && size % GRANULE == 0 && at % GRANULE == 0 && !flags);
    INITIALIZED;
    struct mapping *m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    va_lock();
    struct block *b = va_around(at);
    struct physical *p = vmm_physical(handle);
    bool ok = b && b->kind == BLOCK_RESERVED && at + size <= b->at + b->size && p &&
              offset <= p->size && size <= p->size - offset && !anything_mapped(at, size);
    if (ok) {
        m->block = (struct block){.at = at, .size = size, .span = size, .kind = BLOCK_MAPPED, .dev = p->dev};
        m->of = p;
        m->next = mappings;
        mappings = m;
        p->mappings++;
    }
    va_unlock();
    if (!ok) free(m);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// covered reports whether mappings fill [at, at + size) exactly.
static bool covered(CUdeviceptr at, size_t size) {
    size_t sum = 0;
    for (struct mapping *m = mappings; m; m = m->next) {
        if (apart(at, size, m->block.at, m->block.size)) continue;
        if (m->block.at < at || m->block.at + m->block.size > at + size) return false;
        sum += m->block.size;
    }
    return sum == size;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
    NEED(size);
    INITIALIZED;
    va_lock();
    bool ok = covered(at, size);
    for (struct mapping **p = &mappings; ok && *p;) {
        struct mapping *m = *p;
        if (apart(at, size, m->block.at, m->block.size)) {
            p = &m->next;
            continue;
        }
        *p = m->next;
        backing_drop(&m->block);
        m->of->mappings--;
        give_back(m->of);
        free(m);
    }
    va_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *desc, size_t count) {
    NEED(size && desc && count);
    INITIALIZED;
    va_lock();
    bool ok = covered(at, size);
    va_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static struct mapping *mapping_at(CUdeviceptr at) {
    for (struct mapping *m = mappings; m; m = m->next)
        if (at >= m->block.at && at < m->block.at + m->block.size) return m;
    return NULL;
}

struct physical *vmm_behind(CUdeviceptr at) {
    struct mapping *m = mapping_at(at);
    return m ? m->of : NULL;
}

struct block *vmm_around(CUdeviceptr at) {
    struct mapping *m = mapping_at(at);
    return m ? &m->block : NULL;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *at) {
    NEED(handle);
    INITIALIZED;
    va_lock();
    struct mapping *m = mapping_at((CUdeviceptr)(uintptr_t)at);
    if (m) {
        m->of->holders++;
        *handle = (CUmemGenericAllocationHandle)(uintptr_t)m->of;
    }
    va_unlock();
    return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle) {
    NEED(prop);
    INITIALIZED;
    va_lock();
    struct physical *p = vmm_physical(handle);
    if (p && p->over) p = NULL;
    if (p) *prop = p->prop;
    va_unlock();
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// What an exported descriptor holds; a fabric handle has its ticket alone.
struct passed {
    struct ticket ticket;
    CUmemAllocationProp prop;
};
_Static_assert(sizeof(struct ticket) <= sizeof(CUmemFabricHandle), "ticket");

static bool is_passed_as(CUmemAllocationHandleType type) {
    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || type == CU_MEM_HANDLE_TYPE_FABRIC;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    NEED(out && !flags);
    INITIALIZED;
    if (!is_passed_as(type)) return CUDA_ERROR_NOT_SUPPORTED;
    va_lock();
    struct physical *p = vmm_physical(handle);
    bool over = p && p->over, ok = p && p->hold < 0;
    struct passed passed = {0};
    if (ok) passed = (struct passed){ticket_new(over ? TICKET_MULTICAST : TICKET_VMM, p->dev, p->id, p->size), p->prop};
    if (ok && type == CU_MEM_HANDLE_TYPE_FABRIC)
        ok = (over ? multicast_types(p->over) : p->prop.requestedHandleTypes) & CU_MEM_HANDLE_TYPE_FABRIC;
    va_unlock();
    NEED(ok);
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
        memset(out, 0, sizeof(CUmemFabricHandle));
        memcpy(out, &passed.ticket, sizeof passed.ticket);
        return CUDA_SUCCESS;
    }
    int fd = over ? -1 : sim_hold_pass(cu, &passed.ticket.memory, &passed, sizeof passed);
    if (fd < 0) fd = ticket_to_fd(&passed, sizeof passed);  // it holds nothing, or nowhere to lock
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

// from_fabric makes up what a fabric handle doesn't say.
static void from_fabric(const void *os, struct passed *passed) {
    memcpy(&passed->ticket, os, sizeof passed->ticket);
    passed->prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                         .requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC,
                                         .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    for (int i = 0; i < ordinal_count; i++)
        if (ordinals[i].dev == passed->ticket.memory.dev) passed->prop.location.id = i;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os,
                                        CUmemAllocationHandleType type) {
    struct passed passed;
    bool as_bytes = type == CU_MEM_HANDLE_TYPE_FABRIC;
    NEED(handle);
    INITIALIZED;
    if (!is_passed_as(type)) return CUDA_ERROR_NOT_SUPPORTED;
    NEED(!as_bytes || os);
    if (as_bytes) from_fabric(os, &passed);
    NEED(as_bytes || ticket_from_fd((int)(intptr_t)os, &passed, sizeof passed));
    if (ticket_good(&passed.ticket, TICKET_MULTICAST)) return multicast_import(handle, passed.ticket.memory.size, type);
    NEED(ticket_good(&passed.ticket, TICKET_VMM));
    struct physical *p = malloc(sizeof *p);
    int hold = p ? sim_hold_add(cu, me, &passed.ticket.memory, !as_bytes) : -1;
    if (hold < 0) {
        free(p);
        return CUDA_ERROR_INVALID_VALUE;
    }
    add(handle, p, (struct physical){.size = passed.ticket.memory.size, .dev = passed.ticket.memory.dev, .prop = passed.prop, .hold = hold});
    return CUDA_SUCCESS;
}
