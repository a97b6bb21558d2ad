// SPDX-License-Identifier: Apache-2.0
//
// stream_info.c: what a stream can be asked.
#define _GNU_SOURCE
#include "internal.h"

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

PTSZ(cuStreamGetCtx_v2);
