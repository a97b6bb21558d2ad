// SPDX-License-Identifier: Apache-2.0
//
// small KIB: asks for memory, and how much there is, in a thread with so small a stack.
// Prints the codes: of an allocation, one that doesn't fit, cuMemGetInfo and NVML's view.

#include "cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static CUcontext context;
static void *device;
static int (*memory_info)(void *, unsigned long long *);
static int code[4];

static void *ask(void *unused) {
    CUdeviceptr ptr;
    size_t available, total;
    unsigned long long info[3];
    cuCtxSetCurrent(context);
    code[0] = cuMemAlloc_v2(&ptr, 1 << 20);
    code[1] = cuMemAlloc_v2(&ptr, (size_t)1 << 40);
    code[2] = cuMemGetInfo_v2(&available, &total);
    code[3] = memory_info(device, info);
    return unused;
}

int main(int argc, char **argv) {
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    pthread_attr_t small;
    pthread_t thread;
    if (nvml == NULL || argc != 2 || cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0)
        return 2;
    int (*init)(void) = (int (*)(void))(uintptr_t)dlsym(nvml, "nvmlInit_v2");
    int (*by_index)(unsigned, void **) = (int (*)(unsigned, void **))(uintptr_t)dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
    memory_info = (int (*)(void *, unsigned long long *))(uintptr_t)dlsym(nvml, "nvmlDeviceGetMemoryInfo");
    if (init() != 0 || by_index(0, &device) != 0 || pthread_attr_init(&small) != 0 ||
        pthread_attr_setstacksize(&small, strtoul(argv[1], NULL, 10) << 10) != 0 ||
        pthread_create(&thread, &small, ask, NULL) != 0 || pthread_join(thread, NULL) != 0)
        return 3;
    printf("%d %d %d %d\n", code[0], code[1], code[2], code[3]);
    return 0;
}
