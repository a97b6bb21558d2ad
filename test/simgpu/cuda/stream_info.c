// SPDX-License-Identifier: Apache-2.0
//
// stream_info.c: what a stream can be asked.
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>

#define GET(name, type, fact)                       \
    CUresult name(CUstream stream, type *answer) {  \
        CUstream s;                                 \
        NEED(answer);                               \
        CHECK(context_stream(stream, &s));          \
        *answer = s->fact;                          \
        return CUDA_SUCCESS;                        \
    }                                               \
    PTSZ(name)

GET(cuStreamGetPriority, int, priority);
GET(cuStreamGetFlags, unsigned int, flags);
GET(cuStreamGetId, unsigned long long, id);
GET(cuStreamGetCtx, CUcontext, ctx);
GET(cuStreamGetDevice, CUdevice, ctx->ordinal);

CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *ctx, CUgreenCtx *green) {
    NEED(green);
    *green = NULL;
    return cuStreamGetCtx(stream, ctx);
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

PTSZ(cuStreamGetCtx_v2);
PTSZ(cuStreamCopyAttributes);
PTSZ(cuStreamGetAttribute);
PTSZ(cuStreamSetAttribute);
