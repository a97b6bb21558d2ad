// SPDX-License-Identifier: Apache-2.0
//
// context_info.c: what a context answers and takes, without effect on the
// simulation but for cuCtxSynchronize.
#define _GNU_SOURCE
#include "internal.h"

// What the current context answers and takes; OF is of one that may be given.
#define GET(name, type, fact)        \
    CUresult name(type *answer) {    \
        CUcontext ctx;               \
        NEED(answer);                \
        CHECK(need_context(&ctx));   \
        *answer = (fact);            \
        return CUDA_SUCCESS;         \
    }
#define SET(name, type, member)      \
    CUresult name(type value) {      \
        CUcontext ctx;               \
        CHECK(need_context(&ctx));   \
        ctx->member = value;         \
        return CUDA_SUCCESS;         \
    }
#define OF(name, type, member)                     \
    CUresult name(CUcontext ctx, type *answer) {   \
        NEED(answer);                              \
        if (!ctx) CHECK(need_context(&ctx));       \
        *answer = ctx->member;                     \
        return CUDA_SUCCESS;                       \
    }

GET(cuCtxGetDevice, CUdevice, ctx->ordinal)
GET(cuCtxGetFlags, unsigned int, ctx->flags)
GET(cuCtxGetCacheConfig, CUfunc_cache, ctx->cache)
SET(cuCtxSetCacheConfig, CUfunc_cache, cache)
GET(cuCtxGetSharedMemConfig, CUsharedconfig, ctx->shared)
SET(cuCtxSetSharedMemConfig, CUsharedconfig, shared)
OF(cuCtxGetId, unsigned long long, id)
OF(cuCtxGetApiVersion, unsigned int, api_version)

CUresult cuCtxSynchronize(void) {
    CUcontext ctx;
    CHECK(need_context(&ctx));
    for (CUstream s = ctx->streams; s; s = s->next)
        if (s->capture) {
            capture_spoil(s);
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    CHECK(work_wait(ctx->dev, work_queued(ctx->dev)));
    for (CUstream s = ctx->streams; s; s = s->next) CHECK(stream_wait(s));
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    CUcontext ctx;
    NEED((unsigned)limit < CU_LIMIT_MAX);
    CHECK(need_context(&ctx));
    ctx->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    CUcontext ctx;
    NEED(value && (unsigned)limit < CU_LIMIT_MAX);
    CHECK(need_context(&ctx));
    *value = ctx->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CUcontext ctx;
    CHECK(need_context(&ctx));
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    CUcontext ctx;
    NEED(!flags);
    CHECK(need_context(&ctx));
    if (!peer || peer == ctx) return CUDA_ERROR_INVALID_CONTEXT;
    int can;
    CHECK(cuDeviceCanAccessPeer(&can, ctx->ordinal, peer->ordinal));
    if (!can) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    uint32_t bit = 1u << peer->ordinal;
    return atomic_fetch_or(&ctx->peers, bit) & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    CUcontext ctx;
    CHECK(need_context(&ctx));
    if (!peer || peer == ctx) return CUDA_ERROR_INVALID_CONTEXT;
    uint32_t bit = 1u << peer->ordinal;
    return atomic_fetch_and(&ctx->peers, ~bit) & bit ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
