// SPDX-License-Identifier: Apache-2.0
//
// context.c: contexts and each thread's stack of them.
//
// Invariants:
// - A primary context has one address for the life of the process; it is live
//   while retained. What a context's program allocated is freed when the
//   context goes.
// - contexts in the slot's work record counts live contexts on a device: NVML
//   lists a process by it.
// - The context record of a destroyed context is kept, so that a thread that
//   still has it current is told CONTEXT_IS_DESTROYED.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <string.h>

_Thread_local CUcontext current __attribute__((tls_model("initial-exec")));

struct below {
    CUcontext ctx;
    struct below *next;
};
static _Thread_local struct below *stack;

static pthread_mutex_t contexts = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st primaries[SIM_MAX_DEVICES];
static unsigned long long next_id = 1;

CUresult need_context(CUcontext *ctx) {
    INITIALIZED;
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    uint32_t failed = atomic_load(&me->mps.failed);
    if (__builtin_expect(failed, 0)) return (CUresult)failed;
    if (atomic_load(&current->destroyed)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *ctx = current;
    return CUDA_SUCCESS;
}

CUresult context_stream(CUstream h, CUstream *stream) {
    CUcontext ctx;
    CHECK(need_context(&ctx));
    if (!h || h == CU_STREAM_LEGACY)
        *stream = &ctx->legacy;
    else if (h == CU_STREAM_PER_THREAD)
        *stream = &ctx->per_thread;
    else
        *stream = h;
    return CUDA_SUCCESS;
}

// exclusive reports whether the compute mode keeps this process out: an MPS server
// and its clients are one process to it.
static bool exclusive(struct ordinal *o) {
    unsigned mode = atomic_load(&o->d->compute_mode);
    bool others = false;
    if (mode == CU_COMPUTEMODE_PROHIBITED) return true;
    if (mode != CU_COMPUTEMODE_EXCLUSIVE_PROCESS) return false;
    sim_lock(cu);
    sim_reap(cu);
    for (unsigned i = 0; i < atomic_load(&cu->client_high); i++) {
        struct sim_client *c = &cu->clients[i];
        others |= atomic_load(&c->in_use) && atomic_load(&c->work[o->dev].contexts) &&
                  !sim_mps_together(cu, me, c);
    }
    sim_unlock(cu);
    return others;
}

static uint64_t own_memory(struct ordinal *o) {
    return atomic_load(&me->mps.role) == SIM_MPS_CLIENT ? o->d->mps_context_bytes : o->d->context_bytes;
}

static CUresult live(CUcontext ctx, int ordinal, unsigned flags, unsigned api) {
    struct ordinal *o = &ordinals[ordinal];
    if (atomic_load(&o->d->lost) || exclusive(o)) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    CHECK(mps_room(o));
    if (!sim_charge(cu, me, o->dev, own_memory(o))) return CUDA_ERROR_OUT_OF_MEMORY;
    bool primary = ctx->primary;
    memset(ctx, 0, sizeof *ctx);
    ctx->primary = primary;
    ctx->ordinal = ordinal;
    ctx->dev = o->dev;
    ctx->flags = flags;
    ctx->api_version = api;
    ctx->id = next_id++;
    ctx->legacy.ctx = ctx->per_thread.ctx = ctx;
    ctx->legacy.id = 1;
    ctx->per_thread.id = 2;
    ctx->limits[CU_LIMIT_STACK_SIZE] = 1024;
    ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    stream_link(ctx, &ctx->legacy);
    stream_link(ctx, &ctx->per_thread);
    atomic_fetch_add(&me->work[o->dev].contexts, 1);
    return CUDA_SUCCESS;
}

struct doomed {
    CUcontext ctx;
    CUdeviceptr at[256];
    unsigned n;
};

static void collect(struct block *b, void *arg) {
    struct doomed *d = arg;
    if (b->ctx == d->ctx && b->kind != BLOCK_RESERVED && b->kind != BLOCK_IPC &&
        d->n < sizeof d->at / sizeof *d->at)
        d->at[d->n++] = b->at;
}

static void die(CUcontext ctx) {
    struct ordinal *o = &ordinals[ctx->ordinal];
    struct doomed d = {.ctx = ctx};
    private_end(ctx);
    do {
        d.n = 0;
        va_each(collect, &d);
        for (unsigned i = 0; i < d.n; i++) release(d.at[i]);
    } while (d.n);
    arrays_die(ctx);
    atomic_store(&ctx->destroyed, true);
    sim_uncharge(me, o->dev, own_memory(o));
    // A terminated MPS client's contexts are gone already.
    if (atomic_load(&me->mps.failed) != CUDA_ERROR_MPS_CLIENT_TERMINATED)
        atomic_fetch_sub(&me->work[o->dev].contexts, 1);
}

CUcontext context_primary(CUdevice dev) { return &primaries[dev]; }

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    struct ordinal *o;
    NEED(pctx);
    CHECK(need_device(dev, &o));
    CUcontext p = &primaries[dev];
    CUresult ret = CUDA_SUCCESS;
    pthread_mutex_lock(&contexts);
    p->primary = true;
    if (!p->retained) ret = live(p, dev, p->flags, 3020);
    if (ret == CUDA_SUCCESS) {
        p->retained++;
        *pctx = p;
    }
    pthread_mutex_unlock(&contexts);
    return ret;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    struct ordinal *o;
    CHECK(need_device(dev, &o));
    CUresult ret = CUDA_SUCCESS;
    pthread_mutex_lock(&contexts);
    if (!primaries[dev].retained)
        ret = CUDA_ERROR_INVALID_CONTEXT;
    else if (--primaries[dev].retained == 0)
        die(&primaries[dev]);
    pthread_mutex_unlock(&contexts);
    return ret;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    struct ordinal *o;
    CHECK(need_device(dev, &o));
    CUresult ret = CUDA_SUCCESS;
    pthread_mutex_lock(&contexts);
    unsigned retained = primaries[dev].retained;
    if (retained) {
        die(&primaries[dev]);
        ret = live(&primaries[dev], dev, primaries[dev].flags, 3020);
        primaries[dev].retained = ret == CUDA_SUCCESS ? retained : 0;
    }
    pthread_mutex_unlock(&contexts);
    return ret;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
    struct ordinal *o;
    NEED(!(flags & ~(unsigned)CU_CTX_FLAGS_MASK));
    CHECK(need_device(dev, &o));
    primaries[dev].flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    struct ordinal *o;
    NEED(flags && active);
    CHECK(need_device(dev, &o));
    *flags = primaries[dev].flags;
    *active = primaries[dev].retained > 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) { return cuDevicePrimaryCtxRelease_v2(dev); }

CUresult cuDevicePrimaryCtxReset(CUdevice dev) { return cuDevicePrimaryCtxReset_v2(dev); }

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    struct ordinal *o;
    NEED(pctx && !(flags & ~(unsigned)CU_CTX_FLAGS_MASK));
    CHECK(need_device(dev, &o));
    CUcontext ctx = calloc(1, sizeof *ctx);
    if (!ctx) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&contexts);
    CUresult ret = live(ctx, dev, flags, 3020);
    pthread_mutex_unlock(&contexts);
    if (ret == CUDA_SUCCESS) ret = cuCtxPushCurrent_v2(ctx);
    if (ret == CUDA_SUCCESS)
        *pctx = ctx;
    else
        free(ctx);
    return ret;
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *params, int n, unsigned int flags,
                        CUdevice dev) {
    if (n && params) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;  // it needs MPS
    return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned int flags,
                        CUdevice dev) {
    if (params && params->numExecAffinityParams) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (params && params->cigParams) return CUDA_ERROR_NOT_SUPPORTED;
    return cuCtxCreate_v2(pctx, flags, dev);
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev) { return cuCtxCreate_v2(pctx, flags, dev); }
CUresult cuCtxDestroy(CUcontext ctx) { return cuCtxDestroy_v2(ctx); }

CUresult cuCtxDestroy_v2(CUcontext ctx) {
    INITIALIZED;
    if (!ctx || ctx->primary || atomic_load(&ctx->destroyed)) return CUDA_ERROR_INVALID_CONTEXT;
    if (current == ctx) cuCtxPopCurrent_v2(&(CUcontext){NULL});
    pthread_mutex_lock(&contexts);
    die(ctx);
    pthread_mutex_unlock(&contexts);
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    INITIALIZED;
    if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
    struct below *b = malloc(sizeof *b);
    if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
    *b = (struct below){current, stack};
    stack = b;
    current = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx) {
    INITIALIZED;
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx) *pctx = current;
    struct below *b = stack;
    current = b ? b->ctx : NULL;
    if (b) stack = b->next;
    free(b);
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
    INITIALIZED;
    current = ctx;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx) {
    NEED(pctx);
    INITIALIZED;
    *pctx = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext ctx) {
    INITIALIZED;
    return ctx && ctx == current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
