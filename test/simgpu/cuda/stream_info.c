// SPDX-License-Identifier: Apache-2.0
//
// stream_info.c: what a stream can be asked.
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>

CUresult cuStreamGetPriority(CUstream stream, int *priority) {
    CUstream s;
    NEED(priority);
    CHECK(context_stream(stream, &s));
    *priority = s->priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags) {
    CUstream s;
    NEED(flags);
    CHECK(context_stream(stream, &s));
    *flags = s->flags;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
    CUstream s;
    NEED(id);
    CHECK(context_stream(stream, &s));
    *id = s->id;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx) {
    CUstream s;
    NEED(ctx);
    CHECK(context_stream(stream, &s));
    *ctx = s->ctx;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *ctx, CUgreenCtx *green) {
    NEED(green);
    *green = NULL;
    return cuStreamGetCtx(stream, ctx);
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice *device) {
    CUstream s;
    NEED(device);
    CHECK(context_stream(stream, &s));
    *device = s->ctx->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src) {
    CUstream a, b;
    CHECK(context_stream(dst, &a));
    CHECK(context_stream(src, &b));
    a->priority = b->priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID attr, CUstreamAttrValue *value) {
    CUstream s;
    NEED(value);
    CHECK(context_stream(stream, &s));
    memset(value, 0, sizeof *value);
    if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY) value->priority = s->priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID attr,
                              const CUstreamAttrValue *value) {
    CUstream s;
    NEED(value);
    CHECK(context_stream(stream, &s));
    if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY) s->priority = value->priority;
    return CUDA_SUCCESS;
}

PTSZ(cuStreamGetPriority);
PTSZ(cuStreamGetFlags);
PTSZ(cuStreamGetId);
PTSZ(cuStreamGetCtx);
PTSZ(cuStreamGetCtx_v2);
PTSZ(cuStreamGetDevice);
PTSZ(cuStreamCopyAttributes);
PTSZ(cuStreamGetAttribute);
PTSZ(cuStreamSetAttribute);
