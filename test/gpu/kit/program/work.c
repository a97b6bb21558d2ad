// SPDX-License-Identifier: Apache-2.0
//
// Launches: each kind of them, their throughput, and what a call costs.
#include "kit.h"

#include <stdlib.h>
#include <string.h>

#define THREADS 128
#define STREAMS 4
#define AHEAD 64

static CUstream stream[STREAMS];
static CUfunction work, barrier;
static CUdeviceptr scratch;

static void prepare(void) {
    use(0);
    for (int i = 0; i < STREAMS; i++) MUST(cuStreamCreate, &stream[i], CU_STREAM_NON_BLOCKING);
    MUST(cuMemAlloc_v2, &scratch, MIB);
    MUST(cuMemsetD8_v2, scratch, 0, MIB);
    work = kernel("kit_work");
    barrier = kernel("kit_barrier");
}

static CUresult launch(CUfunction f, unsigned long long iterations, CUstream s) {
    void *params[] = {&iterations, &scratch};
    return p_cuLaunchKernel(f, (unsigned)multiprocessors, 1, 1, THREADS, 1, 1, 0, s, params, NULL);
}

static CUresult launch_cooperative(unsigned long long iterations, CUstream s) {
    unsigned blocks = (unsigned)multiprocessors;
    void *params[] = {&iterations, &scratch, &blocks};
    return p_cuLaunchCooperativeKernel(barrier, blocks, 1, 1, THREADS, 1, 1, 0, s, params);
}

static CUresult launch_ex(unsigned long long iterations, CUstream s) {
    void *params[] = {&iterations, &scratch};
    CUlaunchConfig c = {.gridDimX = (unsigned)multiprocessors, .gridDimY = 1, .gridDimZ = 1,
                        .blockDimX = THREADS, .blockDimY = 1, .blockDimZ = 1, .hStream = s};
    return p_cuLaunchKernelEx(&c, work, params, NULL);
}

static CUfunction of_library(void) {
    CUlibrary library;
    CUkernel k;
    MUST(cuLibraryLoadData, &library, image(), NULL, NULL, 0, NULL, NULL, 0);
    MUST(cuLibraryGetKernel, &k, library, "kit_work");
    return (CUfunction)k; // cuLaunchKernel takes both
}

static CUgraphExec of_graph(unsigned long long iterations) {
    CUgraph graph;
    CUgraphExec exec;
    MUST(cuStreamBeginCapture_v2, stream[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    for (int i = 0; i < 5; i++) {
        CUresult r = launch(work, iterations / 5, stream[0]);
        if (r) fail("cuLaunchKernel into a graph", r);
    }
    MUST(cuStreamEndCapture, stream[0], &graph);
    MUST(cuGraphInstantiateWithFlags, &exec, graph, 0);
    return exec;
}

void calibrate(void) {
    CUevent begin, end;
    float ms, best = 1e9F;
    const unsigned long long iterations = 1000000;
    prepare();
    MUST(cuEventCreate, &begin, 0);
    MUST(cuEventCreate, &end, 0);
    for (int i = 0; i < 8; i++) { // the clocks rise
        MUST(cuEventRecord, begin, stream[0]);
        CUresult r = launch(work, iterations, stream[0]);
        if (r) fail("cuLaunchKernel", r);
        MUST(cuEventRecord, end, stream[0]);
        MUST(cuEventSynchronize, end);
        MUST(cuEventElapsedTime, &ms, begin, end);
        if (ms < best) best = ms;
    }
    printf("{\"iterations_per_us\":%.3f}\n", (double)iterations / (best * 1e3));
}

// Whether the kind can be launched on this driver.
static bool there(const char *kind) {
    if (strcmp(kind, "graph") == 0) return p_cuGraphInstantiateWithFlags && p_cuStreamBeginCapture_v2;
    if (strcmp(kind, "cooperative") == 0) return p_cuLaunchCooperativeKernel != NULL;
    if (strcmp(kind, "library") == 0) return p_cuLibraryLoadData != NULL;
    if (strcmp(kind, "ex") == 0) return p_cuLaunchKernelEx != NULL;
    return true;
}

// The driver's queue holds a thousand launches: no more than ahead are under way, so that
// a load of long kernels ends when it should.
void load(double seconds, unsigned long long iterations, const char *kind, unsigned ahead) {
    static CUevent through[AHEAD];
    unsigned long long launches = 0;
    double longest = 0;
    prepare();
    if (!there(kind)) fail("this driver has none of this kind", 0);
    CUfunction f = strcmp(kind, "library") == 0 ? of_library() : work;
    CUgraphExec exec = strcmp(kind, "graph") == 0 ? of_graph(iterations) : NULL;
    bool cooperative = strcmp(kind, "cooperative") == 0, ex = strcmp(kind, "ex") == 0;
    bool streams = strcmp(kind, "streams") == 0, sync = strcmp(kind, "sync") == 0;
    ahead = ahead < 1 || ahead > AHEAD ? AHEAD : ahead;
    for (unsigned i = 0; i < ahead; i++) MUST(cuEventCreate, &through[i], CU_EVENT_DISABLE_TIMING);
    MUST(cuCtxSynchronize);
    puts("ready");
    if (getchar() == EOF) return;
    double begun = now(), before = begun;
    while (before < begun + seconds) {
        CUstream s = stream[streams ? launches % STREAMS : 0];
        if (launches >= ahead) MUST(cuEventSynchronize, through[launches % ahead]);
        before = now();
        CUresult r = exec          ? p_cuGraphLaunch(exec, s)
                     : cooperative ? launch_cooperative(iterations, s)
                     : ex          ? launch_ex(iterations, s)
                                   : launch(f, iterations, s);
        if (r) fail("launch", r);
        double after = now();
        if (after - before > longest) longest = after - before;
        MUST(cuEventRecord, through[launches % ahead], s);
        if (sync) MUST(cuStreamSynchronize, s);
        before = after, launches++;
    }
    MUST(cuCtxSynchronize);
    printf("{\"launches\":%llu,\"seconds\":%.4f,\"longest_ms\":%.2f}\n", launches, now() - begun, longest * 1e3);
}

// What a kernel writes, and the module's global, by each kind of launch.
void kinds(void) {
    static const char *const all[] = {"kernel", "streams", "graph", "cooperative", "library", "ex"};
    enum { COUNT = 4096 };
    static unsigned out[COUNT];
    CUfunction fill;
    CUdeviceptr at, global;
    size_t bytes;
    CUmodule module;
    unsigned long long none = 0;
    unsigned count = COUNT;
    prepare();
    MUST(cuModuleLoadData, &module, image());
    MUST(cuModuleGetFunction, &fill, module, "kit_fill");
    MUST(cuModuleGetGlobal_v2, &global, &bytes, module, "kit_launches");
    MUST(cuMemAlloc_v2, &at, sizeof out);
    printf("{\"kinds\":[");
    for (unsigned k = 0; k < sizeof all / sizeof all[0]; k++) {
        unsigned value = 1000 * (k + 1);
        void *params[] = {&none, &at, &count, &value};
        CUgraph graph;
        CUgraphExec exec;
        CUkernel of;
        CUlibrary library;
        CUresult r = CUDA_SUCCESS;
        bool has = there(all[k]), right = true;
        CUstream s = stream[k % STREAMS];
        MUST(cuMemsetD8_v2, at, 0, sizeof out);
        if (!has) {
        } else if (strcmp(all[k], "graph") == 0) {
            MUST(cuStreamBeginCapture_v2, s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
            r = p_cuLaunchKernel(fill, COUNT / THREADS, 1, 1, THREADS, 1, 1, 0, s, params, NULL);
            MUST(cuStreamEndCapture, s, &graph);
            if (!r) r = p_cuGraphInstantiateWithFlags(&exec, graph, 0);
            if (!r) r = p_cuGraphLaunch(exec, s);
        } else if (strcmp(all[k], "cooperative") == 0) {
            r = p_cuLaunchCooperativeKernel(fill, COUNT / THREADS, 1, 1, THREADS, 1, 1, 0, s, params);
        } else if (strcmp(all[k], "ex") == 0) {
            CUlaunchConfig c = {.gridDimX = COUNT / THREADS, .gridDimY = 1, .gridDimZ = 1,
                                .blockDimX = THREADS, .blockDimY = 1, .blockDimZ = 1, .hStream = s};
            r = p_cuLaunchKernelEx(&c, fill, params, NULL);
        } else if (strcmp(all[k], "library") == 0) {
            r = p_cuLibraryLoadData(&library, image(), NULL, NULL, 0, NULL, NULL, 0);
            if (!r) r = p_cuLibraryGetKernel(&of, library, "kit_fill");
            if (!r) r = p_cuLaunchKernel((CUfunction)of, COUNT / THREADS, 1, 1, THREADS, 1, 1, 0, s, params, NULL);
        } else {
            r = p_cuLaunchKernel(fill, COUNT / THREADS, 1, 1, THREADS, 1, 1, 0, s, params, NULL);
        }
        MUST(cuCtxSynchronize);
        MUST(cuMemcpyDtoH_v2, out, at, sizeof out);
        for (unsigned i = 0; i < COUNT; i++) right = right && out[i] == value + i;
        printf("%s{\"kind\":\"%s\",\"there\":%s,\"result\":%d,\"right\":%s}", k ? "," : "", all[k], has ? "true" : "false", r,
               right ? "true" : "false");
    }
    unsigned long long launched = 0;
    MUST(cuMemcpyDtoH_v2, &launched, global, sizeof launched);
    printf("],\"global\":%llu}\n", launched);
}

static void call_launch(void) {
    CUresult r = launch(work, 0, stream[0]);
    if (r) fail("cuLaunchKernel", r);
}

static void call_info(void) { (void)free_bytes(); }

static void call_alloc(void) {
    CUdeviceptr at;
    MUST(cuMemAlloc_v2, &at, MIB);
    MUST(cuMemFree_v2, at);
}

static void call_async(void) {
    CUdeviceptr at;
    MUST(cuMemAllocAsync, &at, MIB, stream[0]);
    MUST(cuMemFreeAsync, at, stream[0]);
}

// What the limiter itself asks of the driver about a batch of launches.
static CUevent mark;
static void call_record(void) { MUST(cuEventRecord, mark, stream[0]); }
static void call_query(void) { (void)p_cuEventQuery(mark); }

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The median of rounds, each of them short enough not to fill the driver's queue.
void cost(const char *call) {
    enum { ROUNDS = 201, CALLS = 200 };
    static double round[ROUNDS];
    void (*make)(void) = strcmp(call, "launch") == 0  ? call_launch
                         : strcmp(call, "info") == 0  ? call_info
                         : strcmp(call, "alloc") == 0 ? call_alloc
                         : strcmp(call, "record") == 0 ? call_record
                         : strcmp(call, "query") == 0 ? call_query
                                                      : call_async;
    prepare();
    MUST(cuEventCreate, &mark, 0);
    if (make == call_async && !p_cuMemAllocAsync) fail("this driver has no cuMemAllocAsync", 0);
    for (int r = 0; r < ROUNDS; r++) {
        double from = now();
        for (int i = 0; i < CALLS; i++) make();
        round[r] = (now() - from) / CALLS * 1e9;
        MUST(cuCtxSynchronize);
    }
    qsort(round, ROUNDS, sizeof round[0], ascending);
    printf("{\"ns\":%.1f}\n", round[ROUNDS / 2]);
}
