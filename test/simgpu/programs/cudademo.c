// SPDX-License-Identifier: Apache-2.0
//
// cudademo: a small CUDA program that shows what a container sees of a GPU. It
// uses nothing but the public driver API, opened at run time, so it runs on the
// simulated library and on a real one alike.
//
//   cudademo [--device N] [--alloc MiB] [--alloc-until-fail] [--burn MS]
//            [--kernel-us US] [--hold [SECONDS]]
//
// In this order: prints each visible device, allocates, burns, holds. Output
// lines are "word key=value ..." and never change but by new keys at the end:
//
//   device index=0 name="NVIDIA A100-SXM4-80GB" uuid=GPU-… total_mib=… free_mib=…
//     multiprocessors=… (on the same line: those that this process may use)
//   alloc mib=… ok=1
//   alloc mib=… ok=0 error=CUDA_ERROR_OUT_OF_MEMORY
//   allocated mib=… free_mib=…
//   burn ms=… kernels=… device_ms=… share_percent=…
//   hold pid=…
//
// Exit status: 0; 2 for wrong arguments; 3 when CUDA could not be used; 4 when
// an --alloc did not fit (a failure of --alloc-until-fail is its purpose).
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

#define CALLS(X)                                                                       \
    X(cuInit) X(cuGetErrorName) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName)  \
    X(cuDeviceGetAttribute) X(cuDeviceGetUuid_v2) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent)               \
    X(cuMemGetInfo_v2) X(cuMemAlloc_v2) X(cuModuleLoadData) X(cuModuleGetFunction)     \
    X(cuLaunchKernel) X(cuEventCreate) X(cuEventRecord) X(cuEventSynchronize)

#define DECLARE(name) static __typeof__(name) *p_##name;
CALLS(DECLARE)

static void load(void) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) {
        printf("error call=dlopen reason=\"%s\"\n", dlerror());
        exit(3);
    }
#define FIND(name)                                       \
    if (!(*(void **)&p_##name = dlsym(lib, #name))) {    \
        printf("error call=dlsym symbol=%s\n", #name);   \
        exit(3);                                         \
    }
    CALLS(FIND)
}

static const char *name_of(CUresult r) {
    const char *name = NULL;
    return p_cuGetErrorName(r, &name) == CUDA_SUCCESS && name ? name : "unknown";
}

static void must(const char *call, CUresult r) {
    if (r == CUDA_SUCCESS) return;
    printf("error call=%s error=%s\n", call, name_of(r));
    exit(3);
}

static size_t free_mib(void) {
    size_t free_bytes, total;
    must("cuMemGetInfo", p_cuMemGetInfo_v2(&free_bytes, &total));
    return free_bytes / MIB;
}

static CUdevice use(int index) {
    CUcontext ctx;
    CUdevice dev;
    must("cuDeviceGet", p_cuDeviceGet(&dev, index));
    must("cuDevicePrimaryCtxRetain", p_cuDevicePrimaryCtxRetain(&ctx, dev));
    must("cuCtxSetCurrent", p_cuCtxSetCurrent(ctx));
    return dev;
}

static void print_device(int index) {
    char name[256];
    CUuuid uuid;
    size_t free_bytes, total;
    int multiprocessors;
    CUdevice dev = use(index);
    must("cuDeviceGetName", p_cuDeviceGetName(name, sizeof name, dev));
    must("cuDeviceGetUuid", p_cuDeviceGetUuid_v2(&uuid, dev));
    must("cuMemGetInfo", p_cuMemGetInfo_v2(&free_bytes, &total));
    must("cuDeviceGetAttribute",
         p_cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev));
    printf("device index=%d name=\"%s\" uuid=GPU-", index, name);
    for (int i = 0; i < 16; i++)
        printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
               (unsigned char)uuid.bytes[i]);
    printf(" total_mib=%zu free_mib=%zu multiprocessors=%d\n", total / MIB, free_bytes / MIB,
           multiprocessors);
}

static size_t allocated;

static CUresult take(size_t mib) {
    CUdeviceptr at;
    CUresult r = p_cuMemAlloc_v2(&at, mib * MIB);
    if (r == CUDA_SUCCESS) allocated += mib;
    return r;
}

// until_fail takes ever smaller pieces until not even one MiB is left.
static void until_fail(void) {
    CUresult r = CUDA_SUCCESS;
    for (size_t piece = 1024; piece; piece /= 2)
        while ((r = take(piece)) == CUDA_SUCCESS) {
        }
    printf("alloc mib=1 ok=0 error=%s\n", name_of(r));
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

// A kernel that waits so many nanoseconds by the device's clock. Beside a neighbour some of
// them are the neighbour's: a count of kernels is a measure of work only alone.
static const char image[] =
    "// simgpu: kernel burn argument\n"
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry burn(.param .u64 burn_ns)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .u64 %t<4>;\n"
    "    ld.param.u64 %t1, [burn_ns];\n"
    "    mov.u64 %t2, %globaltimer;\n"
    "    add.u64 %t1, %t1, %t2;\n"
    "L_wait:\n"
    "    mov.u64 %t3, %globaltimer;\n"
    "    setp.lt.u64 %p1, %t3, %t1;\n"
    "    @%p1 bra L_wait;\n"
    "    ret;\n"
    "}\n";

// burn keeps the device as busy as it is let for that long: while one batch of
// four kernels runs, the next is queued already.
static void burn(double ms, unsigned kernel_us) {
    unsigned long long ns = kernel_us * 1000ULL;
    void *params[] = {&ns};
    CUmodule module;
    CUfunction kernel;
    CUevent ended[2];
    unsigned long batches = 0;
    must("cuModuleLoadData", p_cuModuleLoadData(&module, image));
    must("cuModuleGetFunction", p_cuModuleGetFunction(&kernel, module, "burn"));
    for (int i = 0; i < 2; i++) must("cuEventCreate", p_cuEventCreate(&ended[i], 0));
    double start = now_ms(), wall = 0;
    for (; wall < ms; batches++, wall = now_ms() - start) {
        for (int i = 0; i < 4; i++)
            must("cuLaunchKernel",
                 p_cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
        must("cuEventRecord", p_cuEventRecord(ended[batches % 2], NULL));
        if (batches) must("cuEventSynchronize", p_cuEventSynchronize(ended[(batches + 1) % 2]));
    }
    // All but the last batch are known to be done.
    unsigned long kernels = (batches - 1) * 4;
    double device_ms = (double)kernels * kernel_us / 1e3;
    printf("burn ms=%.0f kernels=%lu device_ms=%.1f share_percent=%.1f\n", wall, kernels, device_ms,
           100 * device_ms / wall);
}

static void hold(double seconds) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    printf("hold pid=%d\n", (int)getpid());
    if (seconds <= 0) {
        while (sigwaitinfo(&set, NULL) < 0 && errno == EINTR) {
        }
        return;
    }
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    sigtimedwait(&set, NULL, &t);
}

static double value(int argc, char **argv, int *i, double least) {
    char *end = NULL;
    double v = *i + 1 < argc ? strtod(argv[*i + 1], &end) : -1;
    if (!end || end == argv[*i + 1] || *end || v < least) {
        fprintf(stderr, "cudademo: %s wants a number of at least %g\n", argv[*i], least);
        exit(2);
    }
    ++*i;
    return v;
}

int main(int argc, char **argv) {
    double alloc = 0, burn_ms = 0, hold_s = -1, kernel_us = 1000;
    int device = 0, count = 0, greedy = 0, failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--alloc")) alloc = value(argc, argv, &i, 1);
        else if (!strcmp(argv[i], "--burn")) burn_ms = value(argc, argv, &i, 1);
        else if (!strcmp(argv[i], "--kernel-us")) kernel_us = value(argc, argv, &i, 1);
        else if (!strcmp(argv[i], "--device")) device = (int)value(argc, argv, &i, 0);
        else if (!strcmp(argv[i], "--alloc-until-fail")) greedy = 1;
        else if (!strcmp(argv[i], "--hold"))
            hold_s = i + 1 < argc && argv[i + 1][0] != '-' ? value(argc, argv, &i, 0) : 0;
        else {
            fprintf(stderr, "cudademo: %s: unknown; see the head of cudademo.c\n", argv[i]);
            return 2;
        }
    }
    load();
    must("cuInit", p_cuInit(0));
    must("cuDeviceGetCount", p_cuDeviceGetCount(&count));
    for (int d = 0; d < count; d++) print_device(d);
    use(device);
    if (alloc >= 1) {
        CUresult r = take((size_t)alloc);
        failed = r != CUDA_SUCCESS;
        if (failed)
            printf("alloc mib=%.0f ok=0 error=%s\n", alloc, name_of(r));
        else
            printf("alloc mib=%.0f ok=1\n", alloc);
    }
    if (greedy) until_fail();
    if (alloc >= 1 || greedy) printf("allocated mib=%zu free_mib=%zu\n", allocated, free_mib());
    if (burn_ms >= 1) burn(burn_ms, (unsigned)kernel_us);
    if (hold_s >= 0) hold(hold_s);
    return failed ? 4 : 0;
}
