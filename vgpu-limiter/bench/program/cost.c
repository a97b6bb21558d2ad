// SPDX-License-Identifier: Apache-2.0
//
// cost CALL [LIVE]: the median cost of one call in nanoseconds, over rounds of
// calls, with LIVE other allocations alive.

#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 401
#define CALLS 2000

static CUfunction kernel;
static CUstream stream;

static void must(CUresult result) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "CUDA error %d\n", (int)result);
        exit(1);
    }
}

static void launch(void) {
    unsigned long long ns = 0;
    void *params[] = {&ns};
    must(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

static void get_info(void) {
    size_t free_bytes, total;
    must(cuMemGetInfo_v2(&free_bytes, &total));
}

static void alloc_free(void) {
    CUdeviceptr p;
    must(cuMemAlloc_v2(&p, 1 << 20));
    must(cuMemFree_v2(p));
}

static void not_limited(void) {
    int value;
    must(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
}

static const struct {
    const char *name;
    void (*call)(void);
} calls[] = {
    {"launch", launch}, {"get-info", get_info}, {"alloc-free", alloc_free}, {"not-limited", not_limited}};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    CUcontext context;
    CUmodule module;
    CUdeviceptr p;
    static double round[ROUNDS];
    double began = now();
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuMemAlloc_v2(&p, 1));
    if (argc > 1 && strcmp(argv[1], "init") == 0) {
        printf("%.1f\n", now() - began);
        return 0;
    }
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    must(cuModuleLoadData(&module, "simgpu-module 1\nkernel k 0 argument\n"));
    must(cuModuleGetFunction(&kernel, module, "k"));
    for (int i = argc > 2 ? atoi(argv[2]) : 0; i > 0; i--)
        must(cuMemAlloc_v2(&p, 512));
    for (size_t c = 0; argc > 1 && c < sizeof calls / sizeof calls[0]; c++) {
        if (strcmp(argv[1], calls[c].name) != 0)
            continue;
        for (int r = 0; r < ROUNDS; r++) {
            double start = now();
            for (int i = 0; i < CALLS; i++)
                calls[c].call();
            round[r] = (now() - start) / CALLS;
        }
        qsort(round, ROUNDS, sizeof round[0], ascending);
        printf("%.1f\n", round[ROUNDS / 2]);
        return 0;
    }
    fprintf(stderr, "usage: cost init|launch|get-info|alloc-free|not-limited [LIVE]\n");
    return 2;
}
