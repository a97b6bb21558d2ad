// SPDX-License-Identifier: Apache-2.0
//
// unit/mps CASE: a client of the multi-process service, from inside.
#define _GNU_SOURCE
#include "check.h"
#include "cuda.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define OK(call) SAME(call, CUDA_SUCCESS)

static CUcontext ctx;

static void start(void) {
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
}

// until_failed works until a call fails, says with what, and stays: a failed
// client's error does not go away.
static void until_failed(void) {
    static const char image[] = "simgpu-module 1\nkernel k 1000000\n";
    CUmodule m;
    CUfunction f;
    CUdeviceptr at;
    const char *name;
    CUresult r = CUDA_SUCCESS;
    start();
    OK(cuMemAlloc_v2(&at, 100 << 20));
    OK(cuModuleLoadData(&m, image));
    OK(cuModuleGetFunction(&f, m, "k"));
    printf("hold pid=%d\n", (int)getpid());
    fflush(stdout);
    while (r == CUDA_SUCCESS) {
        r = cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
        if (r == CUDA_SUCCESS) r = cuCtxSynchronize();
    }
    OK(cuGetErrorName(r, &name));
    printf("failed error=%s\n", name);
    SAME(cuMemAlloc_v2(&at, 1), r);
    SAME(cuCtxSynchronize(), r);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    printf("hold pid=%d\n", (int)getpid());
    fflush(stdout);
    pause();
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "until_failed") == 0) until_failed();
    else TRUE(!"a case is named");
    return 0;
}
