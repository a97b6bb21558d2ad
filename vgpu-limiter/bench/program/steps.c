// SPDX-License-Identifier: Apache-2.0
//
// steps SECONDS WHAT ...: programs as people run them. Says that it is ready, waits for a
// byte on its input, works for so long, and prints how many launches it made, the longest
// that one call took in nanoseconds, and how many steps or requests it finished.
//
// train KERNELS KINDS HOST_MS: steps of so many kernels of so many kinds, 5 to 300 us, on
// the default stream, after a batch is copied to the device, with a graph and a copy of the
// result, then waits for all of it, and works by itself for as long.
//
// serve WORKERS KERNELS US PERCENT: requests that come at random moments, as many as keep
// the device busy for so many percent; each is a copy, so many kernels and a copy back, on
// its worker's stream, and waited for.
//
// sleep STREAMS US SLEEP_US: a thread for each stream that launches and sleeps.
//
// pause US PAUSE_US: launches, waits for it and pauses, about so long. The longest call printed is how
// much longer than US the slowest hundredth took, at the least.

#include "program.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KINDS 64
#define BATCH (1 << 20)

static CUcontext context;
static CUfunction kernel[KINDS];
static unsigned long long kind_ns[KINDS];
static double seconds, number[4]; // the arguments after WHAT
static _Atomic unsigned long long launches, longest, finished, due;
static char host[BATCH], answer[64][BATCH / 4];

static void rest(unsigned long long ns) {
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&t, NULL);
}

static void note(unsigned long long took) {
    unsigned long long most = longest;
    while (took > most && !atomic_compare_exchange_weak(&longest, &most, took))
        ;
    launches++;
}

#define CALL(...)                        \
    do {                                 \
        unsigned long long from = now(); \
        must(__VA_ARGS__);               \
        note(now() - from);              \
    } while (0)

static void launch(CUfunction f, unsigned long long ns, CUstream stream) {
    void *params[] = {&ns};
    CALL(cuLaunchKernel(f, 108, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

static void *train(void *argument) {
    CUdeviceptr there;
    CUstream side;
    CUgraph graph;
    CUgraphExec exec;
    must(cuCtxSetCurrent(context));
    must(cuMemAlloc_v2(&there, BATCH));
    must(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    must(cuStreamBeginCapture_v2(side, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < 5; i++) {
        void *params[] = {&kind_ns[i]};
        must(cuLaunchKernel(kernel[i], 108, 1, 1, 32, 1, 1, 0, side, params, NULL));
    }
    must(cuStreamEndCapture(side, &graph));
    must(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (unsigned long long end = now() + (unsigned long long)(seconds * 1e9); now() < end; finished++) {
        CALL(cuMemcpyHtoDAsync_v2(there, host, BATCH, NULL));
        for (int i = 0; i < (int)number[0]; i++)
            launch(kernel[i % (int)number[1]], kind_ns[i % (int)number[1]], NULL);
        CALL(cuGraphLaunch(exec, NULL));
        CALL(cuMemcpyDtoHAsync_v2(host, there, 4096, NULL));
        must(cuStreamSynchronize(NULL));
        rest((unsigned long long)(number[2] * 1e6));
    }
    return argument;
}

static void *serve(void *argument) {
    CUdeviceptr there;
    CUstream stream;
    must(cuCtxSetCurrent(context));
    must(cuMemAlloc_v2(&there, BATCH));
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    unsigned long long end = now() + (unsigned long long)(seconds * 1e9), none = 0, at;
    atomic_compare_exchange_strong(&due, &none, now());
    double device = number[1] * number[2] * 1e3 + 2 * 2560; // ns of a request
    while (now() < end) {
        double u = (rand() + 1.0) / (RAND_MAX + 2.0);
        at = atomic_fetch_add(&due, (unsigned long long)(-log(u) * device * 100 / number[3]));
        unsigned long long before = now();
        if (at > before)
            rest(at - before);
        CALL(cuMemcpyHtoDAsync_v2(there, host, BATCH / 4, stream));
        for (int i = 0; i < (int)number[1]; i++)
            launch(kernel[i % KINDS], (unsigned long long)(number[2] * 1e3), stream);
        CALL(cuMemcpyDtoHAsync_v2(argument, there, BATCH / 4, stream));
        must(cuStreamSynchronize(stream));
        finished++;
    }
    return argument;
}

static void *sleeps(void *argument) {
    CUstream stream;
    must(cuCtxSetCurrent(context));
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned long long end = now() + (unsigned long long)(seconds * 1e9); now() < end; finished++) {
        launch(kernel[0], (unsigned long long)(number[1] * 1e3), stream);
        rest((unsigned long long)(number[2] * 1e3));
    }
    must(cuStreamSynchronize(stream));
    return argument;
}

static int compare(const void *a, const void *b) {
    unsigned long long x = *(const unsigned long long *)a, y = *(const unsigned long long *)b;
    return (x > y) - (x < y);
}

static void *pauses(void *argument) {
    static unsigned long long waited[100000];
    size_t n = 0;
    unsigned long long took = (unsigned long long)(number[0] * 1e3);
    must(cuCtxSetCurrent(context));
    for (unsigned long long end = now() + (unsigned long long)(seconds * 1e9); now() < end && n < 100000; finished++) {
        unsigned long long from = now();
        launch(kernel[0], took, NULL);
        must(cuStreamSynchronize(NULL));
        unsigned long long all = now() - from;
        waited[n++] = all > took ? all - took : 0;
        rest((unsigned long long)(number[1] * 1e3 * (0.5 + rand() / (double)RAND_MAX)));
    }
    qsort(waited, n, sizeof *waited, compare);
    longest = n > 0 ? waited[n - 1 - n / 100] : 0;
    return argument;
}

int main(int argc, char **argv) {
    CUmodule module;
    pthread_t thread[64];
    char text[64 * KINDS] = "simgpu-module 1\n", name[16];
    if (argc < 5) {
        fprintf(stderr, "usage: steps SECONDS train|serve|sleep|pause ...\n");
        return 2;
    }
    seconds = atof(argv[1]);
    for (int i = 3; i < argc && i < 7; i++)
        number[i - 3] = atof(argv[i]);
    bool trains = strcmp(argv[2], "train") == 0, serves = strcmp(argv[2], "serve") == 0, pause = strcmp(argv[2], "pause") == 0;
    int threads = trains || pause ? 1 : (int)number[0];
    if (threads < 1 || threads > 64 || (trains && (number[1] < 1 || number[1] > KINDS)))
        return 2;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    for (int i = 0; i < KINDS; i++) {
        sprintf(text + strlen(text), "kernel k%d 0 argument\n", i);
        kind_ns[i] = (unsigned long long)(5000 * pow(60, (double)(i * 37 % KINDS) / (KINDS - 1)));
    }
    must(cuModuleLoadData(&module, text));
    for (int i = 0; i < KINDS; i++) {
        sprintf(name, "k%d", i);
        must(cuModuleGetFunction(&kernel[i], module, name));
    }
    puts("ready");
    if (fflush(stdout) != 0 || getchar() == EOF)
        return 1;
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, trains ? train : serves ? serve : pause ? pauses : sleeps, answer[i]) != 0)
            return 1;
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("%llu %llu %llu\n", launches, longest, finished);
    return 0;
}
