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

// The first argument, of which no more is read than there is.
static uint64_t first_argument(CUfunction f, void **params, void **extra) {
    uint64_t value = 0;
    size_t size = f->params && f->param_sizes[0] < sizeof value ? f->param_sizes[0] : sizeof value;
    if (params) {
        if (params[0]) memcpy(&value, params[0], size);
        return value;
    }
    for (void **e = extra; e && e[0] != CU_LAUNCH_PARAM_END; e += 2)
        if (e[0] == CU_LAUNCH_PARAM_BUFFER_SIZE && *(size_t *)e[1] < size) size = *(size_t *)e[1];
    for (; extra && extra[0] != CU_LAUNCH_PARAM_END; extra += 2)
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) memcpy(&value, extra[1], size);
    return value;
}

// In how many turns the device holds so many blocks.
static uint64_t waves(CUfunction f, uint64_t blocks, uint64_t threads) {
    CUcontext ctx = f->module->ctx ? f->module->ctx : current;
    if (!ctx) return 1;
    const struct sim_model *m = ordinals[ctx->ordinal].m;
    uint64_t at_once = blocks_per_sm(m, threads) * m->sms;
    return at_once ? (blocks + at_once - 1) / at_once : 1;
}

uint64_t kernel_time(CUfunction f, uint64_t blocks, uint64_t threads, void **params, void **extra) {
    uint64_t ns = f->base_ns + f->per_block_ns * blocks;
    if (f->per_wave_ns) ns += f->per_wave_ns * waves(f, blocks, threads);
    return f->first_argument_ns && (params || extra) ? ns + first_argument(f, params, extra) : ns;
}

static inline CUresult launch(CUfunction f, uint64_t blocks, uint64_t threads, CUstream h,
                              void **params, void **extra) {
    CUstream s;
    CHECK(context_stream(h, &s));
    if (__builtin_expect(!f, 0)) return CUDA_ERROR_INVALID_HANDLE;
    if (__builtin_expect(!blocks || !threads || threads > 1024, 0)) return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_expect(f->loads, 0)) CHECK(load_code(f));
    uint64_t ns = kernel_time(f, blocks, threads, params, extra);
    uint32_t gi = me->work[s->ctx->dev].gi;
    if (__builtin_expect(gi != SIM_WHOLE_GPU, 0)) {
        // An instance has a part of the processors: the kernel takes longer.
        struct ordinal *o = &ordinals[s->ctx->ordinal];
        ns = ns * 7 / (o->d->gi[gi].ci[o->ci].slices ? o->d->gi[gi].ci[o->ci].slices : 7);
    }
    if (__builtin_expect(s->capture != NULL, 0))
        return graph_capture(s->capture, CU_GRAPH_NODE_TYPE_KERNEL, ns);
    sim_takes(cu, SIM_LAUNCH);
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
    uint64_t threads = (uint64_t)bx * by * bz;
    if ((uint64_t)gx * gy * gz > blocks_per_sm(m, threads) * m->sms) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
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
