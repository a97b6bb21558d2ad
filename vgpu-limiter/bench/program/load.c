// SPDX-License-Identifier: Apache-2.0
//
// load SECONDS MICROSECONDS [GRID [STREAMS [KIND]]]: says that it is ready, waits
// for a byte on its input, keeps the device as busy as it may, one thread per
// stream, and prints how many launches it made and the longest that one took, in
// nanoseconds. KIND: kernel, cooperative, graph (of five kernels), fresh (graphs
// that were never launched before), sync (waits for each), mixed (kernels of three
// lengths), data (one kernel whose length depends on its argument: up to twice as
// long), rare (one kernel that is 100 times as long every other time, at random), ends
// (each on a stream of its own, which is destroyed at once), few (four on each
// stream, which is destroyed at once).

#include "program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUcontext context;
static CUfunction kernel, other[2];
static double seconds;
static unsigned grid = 108;
static unsigned long long ns;
static const char *kind = "kernel";
static _Atomic unsigned long long launches, longest;

static void launch_one(CUfunction f, unsigned long long time, CUstream stream) {
    void *params[] = {&time};
    if (strcmp(kind, "cooperative") == 0)
        must(cuLaunchCooperativeKernel(f, grid, 1, 1, 32, 1, 1, 0, stream, params));
    else
        must(cuLaunchKernel(f, grid, 1, 1, 32, 1, 1, 0, stream, params, NULL));
}

static CUgraphExec capture(CUstream stream) {
    CUgraph graph;
    CUgraphExec exec;
    must(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < 5; i++)
        launch_one(kernel, ns / 5, stream);
    must(cuStreamEndCapture(stream, &graph));
    must(cuGraphInstantiateWithFlags(&exec, graph, 0));
    return exec;
}

static void *run(void *argument) {
    CUstream stream;
    unsigned each = strcmp(kind, "ends") == 0 ? 1 : strcmp(kind, "few") == 0 ? 4 : 0, made = 0;
    CUgraphExec exec = NULL;
    unsigned random = 1;
    must(cuCtxSetCurrent(context));
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (strcmp(kind, "graph") == 0)
        exec = capture(stream);
    unsigned long long until = now() + (unsigned long long)(seconds * 1e9);
    for (unsigned long long before = now(), after; before < until; before = after) {
        random = random * 1664525 + 1013904223;
        unsigned which = random >> 24; // the length is ns on average
        if (each != 0 && made % each == 0)
            must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        if (strcmp(kind, "fresh") == 0)
            exec = capture(stream);
        if (exec != NULL)
            must(cuGraphLaunch(exec, stream));
        else if (strcmp(kind, "mixed") == 0)
            launch_one(which < 128 ? kernel : other[which & 1], which < 128 ? ns : which & 1 ? ns * 3 / 2 : ns / 2, stream);
        else if (strcmp(kind, "data") == 0)
            launch_one(kernel, ns * (which + 1) / 128, stream);
        else if (strcmp(kind, "rare") == 0)
            launch_one(kernel, which < 128 ? ns : ns * 100, stream);
        else
            launch_one(kernel, ns, stream);
        after = now();
        if (after - before > longest)
            longest = after - before;
        launches++;
        made++;
        if (strcmp(kind, "sync") == 0)
            must(cuStreamSynchronize(stream));
        if (each != 0 && made % each == 0)
            must(cuStreamDestroy_v2(stream));
    }
    must(each != 0 ? cuCtxSynchronize() : cuStreamSynchronize(stream));
    return argument;
}

int main(int argc, char **argv) {
    CUmodule module;
    pthread_t thread[64];
    int threads = argc > 4 ? atoi(argv[4]) : 1;
    if (argc < 3 || threads < 1 || threads > 64) {
        fprintf(stderr, "usage: load SECONDS MICROSECONDS [GRID [STREAMS [KIND]]]\n");
        return 2;
    }
    seconds = atof(argv[1]);
    ns = (unsigned long long)(atof(argv[2]) * 1e3);
    grid = argc > 3 ? (unsigned)atoi(argv[3]) : grid;
    kind = argc > 5 ? argv[5] : kind;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuModuleLoadData(&module, "simgpu-module 1\nkernel k 0 argument\nkernel l 0 argument\nkernel m 0 argument\n"));
    must(cuModuleGetFunction(&kernel, module, "k"));
    must(cuModuleGetFunction(&other[0], module, "l"));
    must(cuModuleGetFunction(&other[1], module, "m"));
    puts("ready");
    if (fflush(stdout) != 0 || getchar() == EOF)
        return 1;
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, run, NULL) != 0)
            return 1;
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    printf("%llu %llu\n", launches, longest);
    return 0;
}
