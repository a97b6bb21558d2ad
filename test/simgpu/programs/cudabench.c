// SPDX-License-Identifier: Apache-2.0
//
// cudabench: what calls of the driver API cost the caller, in nanoseconds, one
// "bench call=NAME ns=N" line each. Run it natively and under an interposing
// library to see what the library adds. Each figure is the median of several
// rounds, so that one interruption does not show.
//
//   cudabench [ROUNDS]
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CALLS(X)                                                                         \
    X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuMemGetInfo_v2)          \
    X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemAllocAsync) X(cuMemFreeAsync)                \
    X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel) X(cuCtxSynchronize)     \
    X(cuEventCreate) X(cuEventRecord) X(cuEventQuery)

#define DECLARE(name) static __typeof__(name) *p_##name;
CALLS(DECLARE)

static void must(CUresult r) {
    if (r == CUDA_SUCCESS) return;
    printf("error code=%d\n", r);
    exit(3);
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int rounds = 15;
static CUfunction kernel_free, kernel_short;
static CUevent event;

static void launch_free(void) {
    must(p_cuLaunchKernel(kernel_free, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
}

static void launch(void) {
    must(p_cuLaunchKernel(kernel_short, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
}

static void info(void) {
    size_t a, b;
    must(p_cuMemGetInfo_v2(&a, &b));
}

static void record(void) { must(p_cuEventRecord(event, NULL)); }
static void query(void) { must(p_cuEventQuery(event)); }

static void alloc_free(void) {
    CUdeviceptr at;
    must(p_cuMemAlloc_v2(&at, 1 << 20));
    must(p_cuMemFree_v2(at));
}

static void alloc_free_async(void) {
    CUdeviceptr at;
    must(p_cuMemAllocAsync(&at, 1 << 20, NULL));
    must(p_cuMemFreeAsync(at, NULL));
}

static void measure(const char *name, void (*call)(void), int calls) {
    double *ns = calloc((size_t)rounds, sizeof *ns);
    if (!ns) exit(3);
    for (int r = 0; r < rounds; r++) {
        must(p_cuCtxSynchronize());
        double start = now_ns();
        for (int i = 0; i < calls; i++) call();
        ns[r] = (now_ns() - start) / calls;
    }
    qsort(ns, (size_t)rounds, sizeof *ns, rising);
    printf("bench call=%s ns=%.1f\n", name, ns[rounds / 2]);
    free(ns);
}

int main(int argc, char **argv) {
    CUcontext ctx;
    CUmodule module;
    if (argc > 1) rounds = atoi(argv[1]) > 0 ? atoi(argv[1]) : rounds;
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) return 3;
#define FIND(name) \
    if (!(*(void **)&p_##name = dlsym(lib, #name))) return 3;
    CALLS(FIND)
    double start = now_ns();
    must(p_cuInit(0));
    must(p_cuDevicePrimaryCtxRetain(&ctx, 0));
    printf("bench call=cuInit+context ns=%.0f\n", now_ns() - start);
    must(p_cuCtxSetCurrent(ctx));
    must(p_cuModuleLoadData(&module, "simgpu-module 1\nkernel free 0\nkernel short 5000\n"));
    must(p_cuModuleGetFunction(&kernel_free, module, "free"));
    must(p_cuModuleGetFunction(&kernel_short, module, "short"));
    // 1,000 launches stay below the driver's bound on outstanding ones.
    measure("cuLaunchKernel", launch, 1000);
    measure("cuLaunchKernel/no-time", launch_free, 100000);
    must(p_cuEventCreate(&event, 0));
    measure("cuEventRecord", record, 100000);
    measure("cuEventQuery", query, 100000);
    measure("cuMemGetInfo", info, 100000);
    measure("cuMemAlloc+cuMemFree", alloc_free, 100000);
    measure("cuMemAllocAsync+cuMemFreeAsync", alloc_free_async, 100000);
    for (int i = 0; i < 10000; i++) {
        CUdeviceptr at;
        must(p_cuMemAlloc_v2(&at, 4096));
    }
    measure("cuMemAlloc+cuMemFree/10000-live", alloc_free, 100000);
    return 0;
}
