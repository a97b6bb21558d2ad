// SPDX-License-Identifier: Apache-2.0
//
// pulse COUNT MICROSECONDS: keeps the device as busy as it may for 100 ms, COUNT times
// with pauses between, and prints how much of each was its kernels' on the device,
// in microseconds. The first pulse, in which kernels are new, isn't printed.

#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define PULSE_NS 100000000ull
#define PAUSE_NS 300000000ull
#define KERNELS 4096

static CUevent through[KERNELS];

// The kernels that are through at the end of a pulse.
static int pulse(CUfunction kernel, CUstream stream, unsigned long long ns) {
    void *params[] = {&ns};
    int launched = 0, done = 0;
    for (unsigned long long end = now() + PULSE_NS; now() < end && launched < KERNELS; launched++) {
        must(cuLaunchKernel(kernel, 108, 1, 1, 32, 1, 1, 0, stream, params, NULL));
        must(cuEventRecord(through[launched], stream));
    }
    while (done < launched && cuEventQuery(through[done]) == CUDA_SUCCESS)
        done++;
    must(cuStreamSynchronize(stream));
    return done;
}

int main(int argc, char **argv) {
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    if (argc != 3) {
        fprintf(stderr, "usage: pulse COUNT MICROSECONDS\n");
        return 2;
    }
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuModuleLoadData(&module, "simgpu-module 1\nkernel k 0 argument\n"));
    must(cuModuleGetFunction(&kernel, module, "k"));
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < KERNELS; i++)
        must(cuEventCreate(&through[i], CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i <= atoi(argv[1]); i++) {
        int done = pulse(kernel, stream, strtoull(argv[2], NULL, 10) * 1000);
        if (i > 0)
            printf("%ld\n", done * atol(argv[2]));
        nanosleep(&(struct timespec){.tv_nsec = (long)PAUSE_NS}, NULL);
    }
    return 0;
}
