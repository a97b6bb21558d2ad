// SPDX-License-Identifier: Apache-2.0
//
// context_info.c: what a context can be asked and told, without effect on the
// simulation but for cuCtxSynchronize.
#define _GNU_SOURCE
#include "internal.h"

CUresult cuCtxGetDevice(CUdevice *device) {
    CUcontext ctx;
    NEED(device);
    CHECK(need_context(&ctx));
    *device = ctx->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags) {
    CUcontext ctx;
    NEED(flags);
    CHECK(need_context(&ctx));
    *flags = ctx->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
    CUcontext ctx;
    NEED(!(flags & ~(unsigned)CU_CTX_FLAGS_MASK));
    CHECK(need_context(&ctx));
    ctx->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id) {
    NEED(id);
    if (!ctx) CHECK(need_context(&ctx));
    *id = ctx->id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version) {
    NEED(version);
    if (!ctx) CHECK(need_context(&ctx));
    *version = ctx->api_version;
    return CUDA_SUCCESS;
}

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

CUresult cuCtxGetCacheConfig(CUfunc_cache *config) {
    CUcontext ctx;
    NEED(config);
    CHECK(need_context(&ctx));
    *config = ctx->cache;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
    CUcontext ctx;
    CHECK(need_context(&ctx));
    ctx->cache = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config) {
    CUcontext ctx;
    NEED(config);
    CHECK(need_context(&ctx));
    *config = ctx->shared;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
    CUcontext ctx;
    CHECK(need_context(&ctx));
    ctx->shared = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CUcontext ctx;
    CHECK(need_context(&ctx));
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void) {
    CUcontext ctx;
    return need_context(&ctx);
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *affinity, CUexecAffinityType type) {
    CUcontext ctx;
    NEED(affinity && type == CU_EXEC_AFFINITY_TYPE_SM_COUNT);
    CHECK(need_context(&ctx));
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
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
