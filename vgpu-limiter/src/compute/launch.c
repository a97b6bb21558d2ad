// SPDX-License-Identifier: Apache-2.0
//
// Every call that makes the device work on kernels. Without a compute quota each
// is one test and a jump to the driver; with one, most are a few tests more.

#include "compute/throttle.h"
#include "memory/mem_graph.h"

#define PAIR(a, b) ((uint64_t)(a) << 32 | (b))
// Launches of one function with about as many threads may cost as much.
static uint64_t size_key(cu_function f, uint64_t threads) {
    return vgpu_cost_key(f, UINT64_MAX, threads != 0 ? 64 - (unsigned)__builtin_clzll(threads) : 0, 0);
}

#define CLASS(f, gx, gy, gz, bx, by, bz) vgpu_cost_key(f, PAIR(gx, gy), PAIR(gz, bx), PAIR(by, bz))
#define KERNEL(f, gx, gy, gz, bx, by, bz, stream, per_thread, ...)                      \
    VGPU_LIMITED(CLASS(f, gx, gy, gz, bx, by, bz),                                            \
            size_key(f, (uint64_t)(gx) * (gy) * (gz) * (bx) * (by) * (bz)), stream, per_thread, __VA_ARGS__)
#define CONFIGURED(config, f, per_thread, ...)                                          \
    do {                                                                                \
        if (config == NULL)                                                             \
            return __VA_ARGS__;                                                         \
        KERNEL(f, config->grid[0], config->grid[1], config->grid[2], config->block[0],  \
               config->block[1], config->block[2], config->stream, per_thread, __VA_ARGS__); \
    } while (0)
#define SIMPLE(what, stream, per_thread, ...)                                           \
    VGPU_LIMITED(vgpu_cost_key(what, 0, 0, 0), 0, stream, per_thread, __VA_ARGS__)

// The launch that most programs make most of the time. The function itself is for
// streams that were created: it calls nothing but the driver, and that last, so it
// saves and moves no argument. Those of classes that aren't in their first place, those on
// default streams, of which the driver must be asked whose they are, and those to be
// measured have functions of their own.
#define PARAMETERS \
    cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, CU_REST
#define ARGUMENTS f, gx, gy, gz, bx, by, CU_REST_ARGUMENTS
#define STREAM CU_REST_OF(stream)
#define THE_CLASS CLASS(f, gx, gy, gz, bx, by, CU_REST_OF(bz))
#define THE_KERNEL(symbol, per_thread)                                                                        \
    static __attribute__((noinline)) cu_result symbol##_measured(PARAMETERS) {                                \
        KERNEL(f, gx, gy, gz, bx, by, CU_REST_OF(bz), STREAM, per_thread, VGPU_REAL(symbol)(ARGUMENTS));      \
    }                                                                                                         \
    static __attribute__((noinline)) cu_result symbol##_elsewhere(PARAMETERS) {                               \
        if (vgpu_thread_stream_pays_elsewhere(vgpu_thread_stream_of(STREAM), THE_CLASS, STREAM))              \
            return ((__typeof__(&symbol))vgpu_known(VGPU_##symbol))(ARGUMENTS);                               \
        return symbol##_measured(ARGUMENTS);                                                                  \
    }                                                                                                         \
    static __attribute__((noinline)) cu_result symbol##_by_default(PARAMETERS) {                              \
        cu_stream real = vgpu_stream(STREAM, per_thread);                                                     \
        struct vgpu_thread_stream *thread = VGPU_DEFAULT_THREAD_STREAM;                                       \
        uint64_t key = THE_CLASS;                                                                             \
        uint64_t name = vgpu_launch_class_name(thread, key);                                                  \
        if (vgpu_likely(vgpu_thread_stream_is(thread, real) &&                                                \
                        vgpu_launch_class_pays(thread, vgpu_launch_class_place(name), name)))                 \
            return ((__typeof__(&symbol))vgpu_known(VGPU_##symbol))(ARGUMENTS);                               \
        return symbol##_measured(ARGUMENTS);                                                                  \
    }                                                                                                         \
    cu_result symbol(PARAMETERS) {                                                                            \
        __typeof__(&symbol) real = vgpu_known(VGPU_##symbol);                                                 \
        if (vgpu_unlikely(real == NULL))                                                                      \
            return symbol##_measured(ARGUMENTS);                                                              \
        if (!vgpu_launch_limited())                                                                           \
            return real(ARGUMENTS);                                                                           \
        if (STREAM <= VGPU_PER_THREAD)                                                                        \
            return symbol##_by_default(ARGUMENTS);                                                            \
        if (!vgpu_thread_stream_pays(vgpu_thread_stream_of(STREAM), THE_CLASS, STREAM))                       \
            return symbol##_elsewhere(ARGUMENTS);                                                             \
        return real(ARGUMENTS);                                                                               \
    }
THE_KERNEL(cuLaunchKernel, false)
THE_KERNEL(cuLaunchKernel_ptsz, true)

cu_result cuLaunchKernelEx(const struct cu_launch_config *config, cu_function f, void **params,
                           void **extra) {
    CONFIGURED(config, f, false, VGPU_REAL(cuLaunchKernelEx)(config, f, params, extra));
}

cu_result cuLaunchKernelEx_ptsz(const struct cu_launch_config *config, cu_function f, void **params,
                                void **extra) {
    CONFIGURED(config, f, true, VGPU_REAL(cuLaunchKernelEx_ptsz)(config, f, params, extra));
}

cu_result cuLaunchCooperativeKernel(cu_function f, unsigned gx, unsigned gy, unsigned gz,
                                    unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                    cu_stream stream, void **params) {
    KERNEL(f, gx, gy, gz, bx, by, bz, stream, false,
           VGPU_REAL(cuLaunchCooperativeKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params));
}

cu_result cuLaunchCooperativeKernel_ptsz(cu_function f, unsigned gx, unsigned gy, unsigned gz,
                                         unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                         cu_stream stream, void **params) {
    KERNEL(f, gx, gy, gz, bx, by, bz, stream, true,
           VGPU_REAL(cuLaunchCooperativeKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream,
                                                     params));
}

cu_result cuGraphLaunch(cu_exec exec, cu_stream stream) {
    SIMPLE(exec, stream, false, vgpu_graph_run(VGPU_cuGraphLaunch, exec, stream));
}

cu_result cuGraphLaunch_ptsz(cu_exec exec, cu_stream stream) {
    SIMPLE(exec, stream, true, vgpu_graph_run(VGPU_cuGraphLaunch_ptsz, exec, stream));
}

// Several devices at once, each by its own stream. No lock is held across the launch: other
// threads may launch on the same devices in another order.
cu_result cuLaunchCooperativeKernelMultiDevice(struct cu_launch_params *list, unsigned count,
                                               unsigned flags) {
    struct vgpu_launch launch[VGPU_MAX_DEVICES];
    unsigned limited = vgpu_launch_limited() && list != NULL && count <= VGPU_MAX_DEVICES ? count : 0, begun = 0;
    cu_result result = CU_OK;
    for (; begun < limited && result == CU_OK; begun++) {
        const struct cu_launch_params *one = &list[begun];
        const unsigned *g = one->grid, *b = one->block;
        uint64_t key = CLASS(one->f, g[0], g[1], g[2], b[0], b[1], b[2]);
        result = vgpu_launch_begin(&launch[begun], key, 0, one->stream, false);
        vgpu_launch_part(&launch[begun]);
    }
    if (result == CU_OK)
        result = VGPU_REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    for (unsigned i = 0; i < begun; i++)
        vgpu_launch_rejoin(&launch[i]);
    return result;
}

// From before CUDA 4.
cu_result cuLaunch(cu_function f) { SIMPLE(f, NULL, false, VGPU_REAL(cuLaunch)(f)); }

cu_result cuLaunchGrid(cu_function f, int width, int height) {
    KERNEL(f, (unsigned)width, (unsigned)height, 1, 1, 1, 1, NULL, false, VGPU_REAL(cuLaunchGrid)(f, width, height));
}

cu_result cuLaunchGridAsync(cu_function f, int width, int height, cu_stream stream) {
    KERNEL(f, (unsigned)width, (unsigned)height, 1, 1, 1, 1, stream, false,
           VGPU_REAL(cuLaunchGridAsync)(f, width, height, stream));
}
