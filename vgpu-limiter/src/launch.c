// SPDX-License-Identifier: Apache-2.0
//
// Every call that makes the device work on kernels. Without a compute quota each
// is one test and a jump to the driver.

#include "compute.h"
#include "graph.h"

#define LIMITED(work, stream, per_thread, ...)                  \
    do {                                                        \
        if (!vgpu_launch_limited())                             \
            return __VA_ARGS__;                                 \
        struct vgpu_launch launch;                              \
        vgpu_launch_begin(&launch, work, stream, per_thread);   \
        cu_result result = __VA_ARGS__;                         \
        vgpu_launch_end(&launch, result);                       \
        return result;                                          \
    } while (0)

cu_result cuLaunchKernel(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                         unsigned by, unsigned bz, unsigned shared, cu_stream stream, void **params,
                         void **extra) {
    LIMITED(VGPU_KERNEL, stream, false,
            VGPU_REAL(cuLaunchKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));
}

cu_result cuLaunchKernel_ptsz(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                              unsigned by, unsigned bz, unsigned shared, cu_stream stream,
                              void **params, void **extra) {
    LIMITED(VGPU_KERNEL, stream, true,
            VGPU_REAL(cuLaunchKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream, params, extra));
}

cu_result cuLaunchKernelEx(const struct cu_launch_config *config, cu_function f, void **params,
                           void **extra) {
    LIMITED(VGPU_KERNEL, config != NULL ? config->stream : NULL, false,
            VGPU_REAL(cuLaunchKernelEx)(config, f, params, extra));
}

cu_result cuLaunchKernelEx_ptsz(const struct cu_launch_config *config, cu_function f, void **params,
                                void **extra) {
    LIMITED(VGPU_KERNEL, config != NULL ? config->stream : NULL, true,
            VGPU_REAL(cuLaunchKernelEx_ptsz)(config, f, params, extra));
}

cu_result cuLaunchCooperativeKernel(cu_function f, unsigned gx, unsigned gy, unsigned gz,
                                    unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                    cu_stream stream, void **params) {
    LIMITED(VGPU_KERNEL, stream, false,
            VGPU_REAL(cuLaunchCooperativeKernel)(f, gx, gy, gz, bx, by, bz, shared, stream, params));
}

cu_result cuLaunchCooperativeKernel_ptsz(cu_function f, unsigned gx, unsigned gy, unsigned gz,
                                         unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                         cu_stream stream, void **params) {
    LIMITED(VGPU_KERNEL, stream, true,
            VGPU_REAL(cuLaunchCooperativeKernel_ptsz)(f, gx, gy, gz, bx, by, bz, shared, stream,
                                                      params));
}

cu_result cuGraphLaunch(cu_exec exec, cu_stream stream) {
    LIMITED(VGPU_GRAPH, stream, false, vgpu_graph_run(VGPU_cuGraphLaunch, exec, stream));
}

cu_result cuGraphLaunch_ptsz(cu_exec exec, cu_stream stream) {
    LIMITED(VGPU_GRAPH, stream, true, vgpu_graph_run(VGPU_cuGraphLaunch_ptsz, exec, stream));
}

// From before CUDA 4.
cu_result cuLaunch(cu_function f) { LIMITED(VGPU_KERNEL, NULL, false, VGPU_REAL(cuLaunch)(f)); }

cu_result cuLaunchGrid(cu_function f, int width, int height) {
    LIMITED(VGPU_KERNEL, NULL, false, VGPU_REAL(cuLaunchGrid)(f, width, height));
}

cu_result cuLaunchGridAsync(cu_function f, int width, int height, cu_stream stream) {
    LIMITED(VGPU_KERNEL, stream, false, VGPU_REAL(cuLaunchGridAsync)(f, width, height, stream));
}
