// SPDX-License-Identifier: Apache-2.0
//
// replay SECONDS KERNEL_US AT_US:WORK_US ... | +PAUSE_US:WORK_US: says that it is ready, waits
// for a byte on its input, launches a kernel that nobody knows yet, and begins a second later.
// It does pieces of work, each when its time has come and the one before is done, or the same
// piece again and again with a pause before each. A piece is as many kernels as it takes, which
// are launched at once and waited for. It prints how long each took from its time on, in
// microseconds, stops after SECONDS, and ends 100 ms later.

#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void sleep_until(unsigned long long at) {
    unsigned long long before = now(), ns = at > before ? at - before : 0;
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)}, NULL);
}

static void launch(CUfunction kernel, unsigned long long ns, CUstream stream) {
    void *params[] = {&ns};
    must(cuLaunchKernel(kernel, 108, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

int main(int argc, char **argv) {
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUstream stream;
    if (argc < 3) {
        fprintf(stderr, "usage: replay SECONDS KERNEL_US AT_US:WORK_US ...\n");
        return 2;
    }
    unsigned long long each = strtoull(argv[2], NULL, 10) * 1000;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuModuleLoadData(&module, "simgpu-module 1\nkernel k 0 argument\n"));
    must(cuModuleGetFunction(&kernel, module, "k"));
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    puts("ready");
    if (fflush(stdout) != 0 || getchar() == EOF)
        return 1;
    unsigned long long began = now() + 1000000000, end = began + (unsigned long long)(atof(argv[1]) * 1e9), at, left, ns;
    launch(kernel, each, stream);
    must(cuStreamSynchronize(stream));
    sleep_until(began);
    for (int i = 3; i < argc && now() < end; i += argv[i][0] != '+') {
        if (sscanf(argv[i], "%llu:%llu", &at, &left) != 2)
            return 2;
        at = (argv[i][0] == '+' ? now() : began) + at * 1000;
        left *= 1000;
        sleep_until(at);
        for (; left > 0 && now() < end; left -= ns) {
            ns = left < each ? left : each;
            launch(kernel, ns, stream);
        }
        must(cuStreamSynchronize(stream));
        if (left > 0)
            break;
        printf("%llu\n", (now() - at) / 1000);
    }
    sleep_until(end + 100000000); // the account of a process that has ended is lost
    return 0;
}
