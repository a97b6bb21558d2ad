// SPDX-License-Identifier: Apache-2.0
//
// cost CALL [LIVE]: the median cost of one call in nanoseconds, over rounds of
// calls, with LIVE other allocations alive.
//
// cost CALL LIVE THREADS: says when it is ready, waits for a line, and has so many
// threads make CROWD_CALLS calls each, on streams of their own. Whoever runs several
// such processes at a time takes the time.

#include "program.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 401
#define CALLS 2000
#define CROWD_CALLS 100000 // as in bench_test.go

static CUfunction kernel;
static CUcontext context;
static _Thread_local CUstream stream;

static void launch(void) {
    unsigned long long ns = 0;
    void *params[] = {&ns};
    must(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

// As programs launch: another kind each time.
static void launch_kinds(unsigned kinds) {
    static _Thread_local unsigned kind;
    unsigned long long ns = 0;
    void *params[] = {&ns};
    kind = kind + 1 < kinds ? kind + 1 : 0;
    must(cuLaunchKernel(kernel, 1 + kind, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}
static void launch_20(void) { launch_kinds(20); }
static void launch_40(void) { launch_kinds(40); }
static void launch_100(void) { launch_kinds(100); }
static void launch_200(void) { launch_kinds(200); }

static void get_info(void) {
    size_t free_bytes, total;
    must(cuMemGetInfo_v2(&free_bytes, &total));
}

static void alloc_free(void) {
    CUdeviceptr p;
    must(cuMemAlloc_v2(&p, 1 << 20));
    must(cuMemFree_v2(p));
}

static void launch_default(void) {
    CUstream own = stream;
    stream = NULL;
    launch();
    stream = own;
}

static void alloc_free_async(void) {
    CUdeviceptr p;
    must(cuMemAllocAsync(&p, 1 << 20, stream));
    must(cuMemFreeAsync(p, stream));
}

static void total_mem(void) {
    size_t total;
    must(cuDeviceTotalMem_v2(&total, 0));
}

static void not_limited(void) {
    int value;
    must(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
}

static const struct {
    const char *name;
    void (*call)(void);
} calls[] = {
    {"launch", launch},         {"launch-default", launch_default}, {"launch-20-kinds", launch_20},
    {"launch-40-kinds", launch_40}, {"launch-100-kinds", launch_100}, {"launch-200-kinds", launch_200},
    {"get-info", get_info},
    {"total-mem", total_mem},   {"alloc-free", alloc_free},         {"alloc-free-async", alloc_free_async},
    {"not-limited", not_limited}};

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(void (*call)(void)) {
    static double round[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        unsigned long long start = now();
        for (int i = 0; i < CALLS; i++)
            call();
        round[r] = (double)(now() - start) / CALLS;
    }
    qsort(round, ROUNDS, sizeof round[0], ascending);
    printf("%.1f\n", round[ROUNDS / 2]);
}

static pthread_barrier_t barrier;
static void (*the_call)(void);

static void *one_of_many(void *unused) {
    must(cuCtxSetCurrent(context));
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < CALLS; i++)
        the_call(); // as long as it takes the library to know them
    pthread_barrier_wait(&barrier); // ready
    pthread_barrier_wait(&barrier); // go
    for (int i = 0; i < CROWD_CALLS; i++)
        the_call();
    return unused;
}

static void crowd(unsigned threads) {
    pthread_t thread[64];
    pthread_barrier_init(&barrier, NULL, threads + 1);
    for (unsigned i = 0; i < threads; i++)
        if (threads > 64 || pthread_create(&thread[i], NULL, one_of_many, NULL) != 0)
            exit(1);
    pthread_barrier_wait(&barrier);
    puts("ready");
    fflush(stdout);
    getchar();
    pthread_barrier_wait(&barrier);
    for (unsigned i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    puts("done");
}

int main(int argc, char **argv) {
    CUmodule module;
    CUdeviceptr p;
    unsigned long long began = now();
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuMemAlloc_v2(&p, 1));
    if (argc > 1 && strcmp(argv[1], "init") == 0) {
        printf("%llu\n", now() - began);
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
        the_call = calls[c].call;
        if (argc > 3)
            crowd((unsigned)atoi(argv[3]));
        else
            measure(the_call);
        return 0;
    }
    fprintf(stderr, "usage: cost CALL [LIVE [THREADS]]\n");
    return 2;
}
