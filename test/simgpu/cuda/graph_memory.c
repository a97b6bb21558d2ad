// SPDX-License-Identifier: Apache-2.0
//
// graph_memory.c: memory that graphs allocate and free while they run.
//
// Invariants:
// - An allocation node has its address from the beginning and memory only from a
//   launch that allocates it to the free that ends it: a node of a graph, or
//   cuMemFree or cuMemFreeAsync by the program.
// - What launches take is kept for further launches: a device has reserved the
//   most that was ever in use at once, until cuDeviceGraphMemTrim. Only what is
//   reserved is charged.
// - Everything here is guarded by va_lock.
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>

struct graph_alloc {
    struct block *block;
    unsigned holders;  // the node, every executable graph, and itself while it is live
    bool live;
};

static struct {
    uint64_t used, used_high, reserved, reserved_high;
} memory[SIM_MAX_DEVICES];

static void drop(struct graph_alloc *a) {
    struct block *b = a->block;
    if (--a->holders) return;
    free(a);
    va_remove(b);
    backing_drop(b);
    va_give(b);
}

CUresult graph_alloc_new(struct graph_alloc **out, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    struct ordinal *o;
    NEED(p && p->bytesize && p->poolProps.allocType == CU_MEM_ALLOCATION_TYPE_PINNED);
    NEED(p->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
    CHECK(need_device(p->poolProps.location.id, &o));
    struct graph_alloc *a = calloc(1, sizeof *a);
    va_lock();
    struct block *b = a ? va_take(va_round(p->bytesize), 512) : NULL;
    if (b) {
        b->kind = BLOCK_GRAPH;
        b->dev = o->dev;
        b->owner = a;
        va_insert(b);
        *a = (struct graph_alloc){.block = b, .holders = 1};
        p->dptr = b->at;
        *out = a;
    }
    va_unlock();
    if (!b) free(a);
    return b ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void graph_alloc_hold(struct graph_alloc *a) {
    va_lock();
    a->holders++;
    va_unlock();
}

void graph_alloc_drop(struct graph_alloc *a) {
    va_lock();
    drop(a);
    va_unlock();
}

static void end(struct graph_alloc *a) {
    a->live = false;
    memory[a->block->dev].used -= a->block->size;
    drop(a);
}

bool graph_memory_free(struct block *b) {
    struct graph_alloc *a = b->owner;
    bool live = a->live;
    if (live) end(a);
    return live;
}

static struct graph_alloc *target(const struct graph_step *step) {
    struct block *b = step->alloc ? step->alloc->block : va_find(step->freed);
    return b && b->kind == BLOCK_GRAPH ? b->owner : NULL;
}

// peak gives the most that the steps will have in use on a device at once.
static uint64_t peak(unsigned dev, const struct graph_step *steps, size_t n) {
    uint64_t now = memory[dev].used, most = now;
    for (size_t i = 0; i < n; i++) {
        struct graph_alloc *a = target(&steps[i]);
        if (!a || a->block->dev != dev) continue;
        if (!steps[i].alloc)
            now -= a->block->size;
        else if (!a->live)  // otherwise it is freed first (AUTO_FREE_ON_LAUNCH)
            now += a->block->size;
        if (now > most) most = now;
    }
    return most;
}

static CUresult reserve(const struct graph_step *steps, size_t n) {
    for (unsigned dev = 0; dev < cu->device_count; dev++) {
        uint64_t most = peak(dev, steps, n);
        if (most <= memory[dev].reserved) continue;
        if (!sim_charge(cu, me, dev, most - memory[dev].reserved)) return CUDA_ERROR_OUT_OF_MEMORY;
        memory[dev].reserved = most;
        if (most > memory[dev].reserved_high) memory[dev].reserved_high = most;
    }
    return CUDA_SUCCESS;
}

CUresult graph_memory_upload(const struct graph_step *steps, size_t n) {
    if (!n) return CUDA_SUCCESS;
    va_lock();
    CUresult ret = reserve(steps, n);
    va_unlock();
    return ret;
}

CUresult graph_memory_launch(const struct graph_step *steps, size_t n, bool auto_free) {
    if (!n) return CUDA_SUCCESS;
    va_lock();
    CUresult ret = CUDA_SUCCESS;
    for (size_t i = 0; i < n && !auto_free; i++)
        if (steps[i].alloc && steps[i].alloc->live) ret = CUDA_ERROR_INVALID_VALUE;
    if (ret == CUDA_SUCCESS) ret = reserve(steps, n);
    for (size_t i = 0; i < n && ret == CUDA_SUCCESS; i++) {
        struct graph_alloc *a = target(&steps[i]);
        if (a && a->live) end(a);
        if (!a || !steps[i].alloc) continue;
        a->live = true;
        a->holders++;
        uint64_t used = memory[a->block->dev].used += a->block->size;
        if (used > memory[a->block->dev].used_high) memory[a->block->dev].used_high = used;
    }
    va_unlock();
    return ret;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attr, void *value) {
    struct ordinal *o;
    NEED(value);
    CHECK(need_device(dev, &o));
    va_lock();
    uint64_t values[] = {memory[o->dev].used, memory[o->dev].used_high, memory[o->dev].reserved,
                         memory[o->dev].reserved_high};
    va_unlock();
    NEED((unsigned)attr < sizeof values / sizeof *values);
    *(cuuint64_t *)value = values[attr];
    return CUDA_SUCCESS;
}

// By the API only the high marks can be set, and only to zero.

CUresult cuDeviceGraphMemTrim(CUdevice dev) {
    struct ordinal *o;
    CHECK(need_device(dev, &o));
    va_lock();
    sim_uncharge(me, o->dev, memory[o->dev].reserved - memory[o->dev].used);
    memory[o->dev].reserved = memory[o->dev].used;
    va_unlock();
    return CUDA_SUCCESS;
}
