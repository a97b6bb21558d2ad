// SPDX-License-Identifier: Apache-2.0
//
// brief THREADS: as many threads one after the other, each of which launches a kernel and
// ends. Prints the codes of the launches that failed, and by how many pages what is mapped
// has grown since the first of them ended.

#include "cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static CUcontext context;
static CUstream stream;
static CUfunction kernel;
static int failed;

static void *launch(void *unused) {
    uint64_t ns = 1000;
    void *params[] = {&ns};
    cuCtxSetCurrent(context);
    int code = cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
    if (code != 0)
        failed = code;
    return unused;
}

static long mapped(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL || fscanf(file, "%ld", &pages) != 1)
        exit(3);
    fclose(file);
    return pages;
}

int main(int argc, char **argv) {
    CUmodule module;
    long before = 0;
    if (argc != 2 || cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0 ||
        cuStreamCreate(&stream, 1) != 0 || cuModuleLoadData(&module, "simgpu-module 1\nkernel spin 0 argument\n") != 0 ||
        cuModuleGetFunction(&kernel, module, "spin") != 0)
        return 2;
    for (int i = 0; i < atoi(argv[1]); i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, launch, NULL) != 0 || pthread_join(thread, NULL) != 0)
            return 3;
        if (i == 0)
            before = mapped();
    }
    printf("%d %ld\n", failed, mapped() - before);
    return 0;
}
