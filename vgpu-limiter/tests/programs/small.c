// SPDX-License-Identifier: Apache-2.0
//
// small KIB [launches]: asks for memory, and how much there is, in a thread with so small a
// stack, or with the smallest that glibc allows: 128 KiB on arm64. Prints the codes: of an
// allocation, one that doesn't fit, cuMemGetInfo, NVML's view, an asynchronous allocation,
// memory to be mapped and an array; or also of launches and of a graph.

#include "cuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static CUcontext context;
static void *device;
static int (*memory_info)(void *, unsigned long long *);
static CUfunction kernel;
static int code[9], calls = 7;

// Some wait for the quota.
static int launches(CUstream stream) {
    unsigned long long ns = 1000000;
    void *params[] = {&ns};
    int result = 0;
    for (unsigned i = 0; result == 0 && i < 40; i++)
        result = cuLaunchKernel(kernel, 1 + i % 2, 1, 1, 1, 1, 1, 0, stream, params, NULL);
    return result;
}

static int graph(CUstream stream) {
    CUgraph captured;
    CUgraphExec exec;
    int result = cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    result = result != 0 ? result : launches(stream);
    result = result != 0 ? result : (int)cuStreamEndCapture(stream, &captured);
    result = result != 0 ? result : (int)cuGraphInstantiateWithFlags(&exec, captured, 0);
    return result != 0 ? result : (int)cuGraphLaunch(exec, stream);
}

static void *ask(void *unused) {
    CUdeviceptr ptr;
    size_t available, total;
    unsigned long long info[3];
    cuCtxSetCurrent(context);
    code[0] = cuMemAlloc_v2(&ptr, 1 << 20);
    code[1] = cuMemAlloc_v2(&ptr, (size_t)1 << 40);
    code[2] = cuMemGetInfo_v2(&available, &total);
    code[3] = memory_info(device, info);
    CUstream stream = NULL;
    CUmemGenericAllocationHandle handle;
    CUarray array;
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    const CUDA_ARRAY_DESCRIPTOR flat = {16, 16, CU_AD_FORMAT_FLOAT, 4};
    code[4] = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != 0 ? -1 : (int)cuMemAllocAsync(&ptr, 1 << 20, stream);
    code[5] = cuMemCreate(&handle, 2 << 20, &prop, 0);
    code[6] = cuArrayCreate_v2(&array, &flat);
    if (calls == 7)
        return unused;
    code[7] = launches(stream);
    code[8] = graph(stream);
    return unused;
}

int main(int argc, char **argv) {
    CUmodule module;
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    pthread_attr_t small;
    pthread_t thread;
    if (nvml == NULL || argc < 2 || cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0)
        return 2;
    calls = argc > 2 ? 9 : 7;
    size_t stack = strtoul(argv[1], NULL, 10) << 10, smallest = (size_t)PTHREAD_STACK_MIN;
    int (*init)(void) = (int (*)(void))(uintptr_t)dlsym(nvml, "nvmlInit_v2");
    int (*by_index)(unsigned, void **) = (int (*)(unsigned, void **))(uintptr_t)dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    memory_info = (int (*)(void *, unsigned long long *))(uintptr_t)dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    if (init() != 0 || by_index(0, &device) != 0 || pthread_attr_init(&small) != 0 ||
        cuCtxSetCurrent(context) != 0 || cuModuleLoadData(&module, "simgpu-module 1\nkernel spin 0 argument\n") != 0 ||
        cuModuleGetFunction(&kernel, module, "spin") != 0 || pthread_attr_setstacksize(&small, stack < smallest ? smallest : stack) != 0 ||
        pthread_create(&thread, &small, ask, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 3;
    for (int i = 0; i < calls; i++)
        printf("%d%c", code[i], i + 1 < calls ? ' ' : '\n');
    return 0;
}
