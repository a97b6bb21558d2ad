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
    alarm(600);  // never that long, on whatever machine: one that nothing fails must not stay
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
    alarm(0);
    SAME(cuMemAlloc_v2(&at, 1), r);
    SAME(cuCtxSynchronize(), r);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    printf("hold pid=%d\n", (int)getpid());
    fflush(stdout);
    pause();
}

// full makes contexts until the server takes no more of them.
static void full(void) {
    int n = 0;
    CUresult r;
    OK(cuInit(0));
    while ((r = cuCtxCreate_v2(&ctx, 0, 0)) == CUDA_SUCCESS) n++;
    SAME(r, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
    OK(cuCtxDestroy_v2(ctx));
    OK(cuCtxCreate_v2(&ctx, 0, 0));
    printf("contexts=%d\n", n);
}

// sms says how many this client may use.
static void sms(void) {
    int n;
    start();
    OK(cuDeviceGetAttribute(&n, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    printf("sms=%d\n", n);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "until_failed") == 0) until_failed();
    else if (argc == 2 && strcmp(argv[1], "full") == 0) full();
    else if (argc == 2 && strcmp(argv[1], "sms") == 0) sms();
    else TRUE(!"a case is named");
    return 0;
}
