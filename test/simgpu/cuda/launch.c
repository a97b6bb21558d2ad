// SPDX-License-Identifier: Apache-2.0
//
// launch.c: every way to start a kernel.
//
// Invariants:
// - All ways come together in launch(): a way that is forgotten does not run.
// - A launch costs the program tens of nanoseconds while the queue is not dry
//   (work.c); a kernel whose time is 0 is checked and then costs nothing.
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>

uint64_t kernel_time(CUfunction f, uint64_t blocks, void **params, void **extra) {
    uint64_t ns = f->base_ns + f->per_block_ns * blocks, more = 0;
    if (!f->first_argument_ns) return ns;
    if (params && params[0]) memcpy(&more, params[0], sizeof more);
    for (; !params && extra && extra[0] != CU_LAUNCH_PARAM_END; extra += 2)
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) memcpy(&more, extra[1], sizeof more);
    return ns + more;
}

static inline CUresult launch(CUfunction f, uint64_t blocks, uint64_t threads, CUstream h,
                              void **params, void **extra) {
    CUstream s;
    CHECK(context_stream(h, &s));
    if (__builtin_expect(!f, 0)) return CUDA_ERROR_INVALID_HANDLE;
    if (__builtin_expect(!blocks || !threads || threads > 1024, 0)) return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_expect(f->loads, 0)) CHECK(load_code(f));
    uint64_t ns = kernel_time(f, blocks, params, extra);
    uint32_t gi = me->work[s->ctx->dev].gi;
    if (__builtin_expect(gi != SIM_WHOLE_GPU, 0)) {
        // An instance has a part of the processors: the kernel takes longer.
        struct ordinal *o = &ordinals[s->ctx->ordinal];
        ns = ns * 7 / (o->d->gi[gi].ci[o->ci].slices ? o->d->gi[gi].ci[o->ci].slices : 7);
    }
    if (__builtin_expect(s->capture != NULL, 0))
        return graph_capture(s->capture, CU_GRAPH_NODE_TYPE_KERNEL, ns);
    return stream_add(s, ns);
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                        unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                        CUstream stream, void **params, void **extra) {
    (void)shared;
    return launch(f, (uint64_t)gx * gy * gz, (uint64_t)bx * by * bz, stream, params, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {
    NEED(c && (!c->numAttrs || c->attrs));
    return launch(f, (uint64_t)c->gridDimX * c->gridDimY * c->gridDimZ,
                  (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ, c->hStream, params, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy,
                                   unsigned int gz, unsigned int bx, unsigned int by,
                                   unsigned int bz, unsigned int shared, CUstream stream,
                                   void **params) {
    CUcontext ctx;
    (void)shared;
    CHECK(need_context(&ctx));
    const struct sim_model *m = ordinals[ctx->ordinal].m;
    // All blocks must be resident together.
    uint64_t threads = (uint64_t)bx * by * bz, per_sm = threads ? m->threads_per_sm / threads : 0;
    if (per_sm > m->blocks_per_sm) per_sm = m->blocks_per_sm;
    if ((uint64_t)gx * gy * gz > per_sm * m->sms) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return launch(f, (uint64_t)gx * gy * gz, threads, stream, params, NULL);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int n,
                                              unsigned int flags) {
    (void)flags;
    NEED(list && n);
    for (unsigned i = 0; i < n; i++) {
        CUDA_LAUNCH_PARAMS *p = &list[i];
        CHECK(launch(p->function, (uint64_t)p->gridDimX * p->gridDimY * p->gridDimZ,
                     (uint64_t)p->blockDimX * p->blockDimY * p->blockDimZ, p->hStream,
                     p->kernelParams, NULL));
    }
    return CUDA_SUCCESS;
}

CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z) {
    INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    NEED(x > 0 && y > 0 && z > 0);
    f->block[0] = (unsigned)x, f->block[1] = (unsigned)y, f->block[2] = (unsigned)z;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetSharedSize(CUfunction f, unsigned int bytes) {
    INITIALIZED;
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    f->shared = bytes;
    return CUDA_SUCCESS;
}

CUresult cuParamSetSize(CUfunction f, unsigned int bytes) {
    (void)bytes;
    INITIALIZED;
    return f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuParamSetv(CUfunction f, int offset, void *ptr, unsigned int bytes) {
    (void)bytes;
    INITIALIZED;
    NEED(offset >= 0 && ptr);
    return f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    NEED(width > 0 && height > 0);
    return launch(f, (uint64_t)width * (uint64_t)height,
                  (uint64_t)f->block[0] * f->block[1] * f->block[2], stream, NULL, NULL);
}

CUresult cuLaunchGrid(CUfunction f, int width, int height) {
    return cuLaunchGridAsync(f, width, height, NULL);
}

CUresult cuLaunch(CUfunction f) { return cuLaunchGrid(f, 1, 1); }

PTSZ(cuLaunchKernel);
PTSZ(cuLaunchKernelEx);
PTSZ(cuLaunchCooperativeKernel);
