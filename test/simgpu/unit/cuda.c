// SPDX-License-Identifier: Apache-2.0
//
// unit/cuda CASE: the CUDA side as a program sees it. Links the library as
// ordinary programs do. Nothing here depends on how fast anything runs: times
// are asked of the simulated device, not of the wall.
#define _GNU_SOURCE
#include "case.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

CUcontext ctx;

void start(void) {
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
}

size_t available(void) {
    size_t left, total;
    OK(cuMemGetInfo_v2(&left, &total));
    return left;
}

CUfunction kernel(const char *image, const char *name) {
    CUmodule m;
    CUfunction f;
    OK(cuModuleLoadData(&m, image));
    OK(cuModuleGetFunction(&f, m, name));
    return f;
}

void launch(CUfunction f, CUstream s) {
    OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, s, NULL, NULL));
}

static void uninitialised(void) {
    CUdeviceptr at;
    int n;
    SAME(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
    SAME(cuMemAlloc_v2(&at, 1), CUDA_ERROR_NOT_INITIALIZED);
    OK(cuDriverGetVersion(&n));
    OK(cuInit(0));
    SAME(cuMemAlloc_v2(&at, 1), CUDA_ERROR_INVALID_CONTEXT);
    pid_t child = fork();
    if (!child) _exit(cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED &&
                      cuInit(0) == CUDA_ERROR_NOT_INITIALIZED);
    int status;
    waitpid(child, &status, 0);
    SAME(WEXITSTATUS(status), 1);
}

static void contexts(void) {
    start();
    size_t all = available();
    CUcontext own, now;
    CUdeviceptr at;
    OK(cuCtxCreate_v2(&own, 0, 0));
    OK(cuMemAlloc_v2(&at, MIB));
    OK(cuCtxGetCurrent(&now));
    TRUE(now == own);
    OK(cuCtxDestroy_v2(own));
    OK(cuCtxGetCurrent(&now));
    TRUE(now == ctx);
    SAME(available(), all);  // its memory went with it
    OK(cuCtxCreate(&own, 0, 0));
    OK(cuCtxDestroy(own));
    OK(cuCtxSetCurrent(own));
    SAME(cuMemAlloc_v2(&at, MIB), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

// ffmpeg reads its pictures through texture objects.
static void textures(void) {
    CUtexObject a, b;
    CUsurfObject s;
    start();
    OK(cuTexObjectCreate(&a, &a, &a, NULL));
    OK(cuTexObjectCreate(&b, &a, &a, NULL));
    OK(cuSurfObjectCreate(&s, &a));
    TRUE(a && b && s && a != b);
    OK(cuTexObjectDestroy(a));
    OK(cuSurfObjectDestroy(s));
    SAME(cuTexObjectDestroy(99), CUDA_ERROR_INVALID_VALUE);
    SAME(cuTexObjectCreate(&a, NULL, &a, NULL), CUDA_ERROR_INVALID_VALUE);
}

// Kernels run one after another, on whatever stream; events tell device time.
static void timing(void) {
    start();
    CUfunction f = kernel("simgpu-module 1\nkernel long 100000000\nkernel k 2000000\n", "k");
    CUfunction ahead = kernel("simgpu-module 1\nkernel long 100000000\n", "long");
    CUstream s;
    CUevent a, b;
    float ms;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    SAME(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_INVALID_HANDLE);
    launch(ahead, s);  // keeps the queue from running dry while the rest comes
    OK(cuEventRecord(a, s));
    for (int i = 0; i < 5; i++) launch(f, s);
    OK(cuEventRecord(b, s));
    OK(cuStreamSynchronize(s));
    OK(cuStreamQuery(s));
    OK(cuEventElapsedTime(&ms, a, b));
    TRUE(ms >= 9.99f);  // not less than five kernels; more if this process was held up
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

// Time in which the device had nothing to do is no credit for what comes next.
static void idle(void) {
    start();
    CUfunction f = kernel("simgpu-module 1\nkernel k 5000000\n", "k");
    launch(f, NULL);
    OK(cuCtxSynchronize());
    struct timespec pause = {0, 20000000};  // the idle time itself, not a wait for anything
    nanosleep(&pause, NULL);
    double start_ms = now_ms();
    launch(f, NULL);
    launch(f, NULL);
    OK(cuCtxSynchronize());
    TRUE(now_ms() - start_ms >= 10);
}

static void pending(void) {
    start();
    CUfunction hour = kernel("simgpu-module 1\nkernel hour 3600000000000\n", "hour");
    CUevent a, b;
    float ms;
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    OK(cuEventRecord(a, NULL));
    OK(cuEventQuery(a));
    launch(hour, NULL);
    OK(cuEventRecord(b, NULL));
    SAME(cuEventQuery(b), CUDA_ERROR_NOT_READY);
    SAME(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    SAME(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_NOT_READY);
}

// The driver holds 1,024 launches: one more waits until the oldest is done.
static void queue(void) {
    start();
    CUfunction f = kernel("simgpu-module 1\nkernel k 100000\n", "k");
    CUevent early;
    OK(cuEventCreate(&early, 0));
    for (int i = 0; i < 2000; i++) {
        launch(f, NULL);
        if (i == 900) OK(cuEventRecord(early, NULL));
    }
    OK(cuEventQuery(early));
    OK(cuCtxSynchronize());
}

// A process that keeps its device busy until it is killed.
static void busy(void) {
    start();
    launch(kernel("simgpu-module 1\nkernel hour 3600000000000\n", "hour"), NULL);
    printf("hold pid=%d\n", (int)getpid());
    fflush(stdout);
    pause();
}

static void shapes(void) {
    start();
    CUfunction f = kernel("simgpu-module 1\nkernel k 1000 10 argument\nkernel one 0\n", "k");
    unsigned long long more = 500000;
    void *params[] = {&more};
    CUlaunchConfig config = {.gridDimX = 100, .gridDimY = 1, .gridDimZ = 1,
                             .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
    OK(cuLaunchKernel(f, 100, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    OK(cuLaunchKernelEx(&config, f, params, NULL));
    OK(cuLaunchCooperativeKernel(f, 100, 1, 1, 32, 1, 1, 0, NULL, params));
    SAME(cuLaunchCooperativeKernel(f, 1 << 20, 1, 1, 32, 1, 1, 0, NULL, params),
         CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    SAME(cuLaunchKernel(f, 1, 1, 1, 2048, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_INVALID_VALUE);
    SAME(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxSynchronize());
    CUmodule m;
    SAME(cuModuleLoadData(&m, "\x7f" "ELF"), CUDA_ERROR_NO_BINARY_FOR_GPU);
    SAME(cuModuleLoadData(&m, "simgpu-module 1\nkernel k\n"), CUDA_ERROR_INVALID_IMAGE);
}

static void count(void *n) { ++*(int *)n; }

static void graphs(void) {
    start();
    CUfunction f = kernel("simgpu-module 1\nkernel k 1000000\n", "k");
    CUstream s, other;
    CUevent fork_event;
    CUgraph g;
    CUgraphExec exec;
    CUgraphNode nodes[8];
    CUgraphNodeType type;
    size_t n = 8;
    int calls = 0;
    OK(cuStreamCreate(&s, 0));
    OK(cuStreamCreate(&other, 0));
    OK(cuEventCreate(&fork_event, 0));
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch(f, s);
    OK(cuEventRecord(fork_event, s));
    OK(cuStreamWaitEvent(other, fork_event, 0));
    launch(f, other);
    OK(cuStreamEndCapture(s, &g));
    OK(cuGraphGetNodes(g, nodes, &n));
    SAME(n, 3);  // two kernels and the event
    OK(cuGraphNodeGetType(nodes[0], &type));
    SAME(type, CU_GRAPH_NODE_TYPE_KERNEL);
    OK(cuGraphInstantiateWithFlags(&exec, g, 0));
    OK(cuGraphDestroy(g));
    for (int i = 0; i < 3; i++) OK(cuGraphLaunch(exec, s));
    OK(cuLaunchHostFunc(s, count, &calls));
    OK(cuStreamSynchronize(s));
    SAME(calls, 1);
    OK(cuGraphExecDestroy(exec));
}

// A capture that somebody waits for, or asks about, comes to nothing.
static void spoilt_captures(void) {
    start();
    CUfunction f = kernel("simgpu-module 1\nkernel k 1000000\n", "k");
    CUstream s, other;
    CUevent event;
    CUgraph g;
    CUstreamCaptureStatus status;
    OK(cuStreamCreate(&s, 0));
    OK(cuStreamCreate(&other, 0));
    OK(cuEventCreate(&event, 0));
    OK(cuEventRecord(event, other));
    for (int how = 0; how < 5; how++) {
        CUstreamCaptureMode mode = how == 4 ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_GLOBAL;
        OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        launch(f, s);
        OK(cuThreadExchangeStreamCaptureMode(&mode));
        CUresult got = how == 0   ? cuStreamSynchronize(s)
                       : how == 1 ? cuStreamQuery(s)
                       : how == 2 ? cuCtxSynchronize()
                                  : cuEventQuery(event);
        OK(cuThreadExchangeStreamCaptureMode(&mode));
        SAME(got, how == 4 ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        OK(cuStreamIsCapturing(s, &status));
        SAME(status, how == 4 ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        SAME(cuStreamEndCapture(s, &g), how == 4 ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
}

CUresult cuGraphAddDependencies(void);  // not simulated, and found by its version

static void symbols(void) {
    void *got;
    CUdriverProcAddressQueryResult status;
    static const struct {
        const char *name;
        int version;
        cuuint64_t flags;
        void *want;
    } cases[] = {
        {"cuInit", 12000, 0, (void *)cuInit},
        {"cuMemAlloc", 12000, 0, (void *)cuMemAlloc_v2},
        {"cuMemAlloc", 2000, 0, NULL},
        {"cuLaunchKernel", 7000, 0, (void *)cuLaunchKernel},
        {"cuLaunchKernel", 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
         (void *)cuLaunchKernel_ptsz},
        {"cuMemcpyHtoD", 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
         (void *)cuMemcpyHtoD_v2_ptds},
        {"cuGraphInstantiate", 11000, 0, (void *)cuGraphInstantiate_v2},
        {"cuGraphInstantiate", 12000, 0, (void *)cuGraphInstantiateWithFlags},
        {"cuCtxCreate", 11030, 0, (void *)cuCtxCreate_v2},
        {"cuCtxCreate", 13000, 0, (void *)cuCtxCreate_v4},
        {"cuGetProcAddress", 12000, 0, (void *)cuGetProcAddress_v2},
        {"cuGraphAddDependencies", 12000, 0, (void *)cuGraphAddDependencies},
        {"cuNoSuchCall", 12000, 0, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        OK(cuGetProcAddress_v2(cases[i].name, &got, cases[i].version, cases[i].flags, &status));
        if (got != cases[i].want) printf("%s at %d\n", cases[i].name, cases[i].version);
        TRUE(got == cases[i].want);
        SAME(status == CU_GET_PROC_ADDRESS_SUCCESS, got != NULL);
    }
    SAME(cuGetProcAddress("cuNoSuchCall", &got, 12000, 0), CUDA_ERROR_NOT_FOUND);
    // What is not simulated is there, and says so.
    OK(cuGetProcAddress("cuTexRefCreate", &got, 12000, 0));
    SAME(((CUresult(*)(void *))got)(&got), CUDA_ERROR_NOT_INITIALIZED);
    start();
    OK(cuGetProcAddress("cuTexRefCreate", &got, 12000, 0));
    SAME(((CUresult(*)(void *))got)(&got), CUDA_ERROR_NOT_SUPPORTED);
}

// On a driver of branch 535 newer forms are not to be had.
static void old_symbols(void) {
    void *got;
    CUdriverProcAddressQueryResult status;
    OK(cuGetProcAddress_v2("cuCtxCreate", &got, 13000, 0, &status));
    TRUE(got == (void *)cuCtxCreate_v3);
    OK(cuGetProcAddress_v2("cuMemGetMemPool", &got, 13000, 0, &status));
    SAME(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

static const struct {
    const char *name;
    void (*run)(void);
} all_cases[] = {
    {"uninitialised", uninitialised}, {"memory", memory}, {"race", race}, {"pools", pools},
    {"vmm", vmm}, {"arrays", arrays}, {"sparse", sparse}, {"contexts", contexts}, {"textures", textures}, {"timing", timing},
    {"idle", idle}, {"pending", pending}, {"queue", queue}, {"busy", busy}, {"ipc", ipc},
    {"shapes", shapes}, {"graphs", graphs}, {"spoilt_captures", spoilt_captures}, {"graph_memory", graph_memory}, {"symbols", symbols}, {"old_symbols", old_symbols}, {"runtime", runtime},
    {"ptx", ptx}, {"ptx_time", ptx_time}, {"bad_images", bad_images}, {"linker", linker},
    {"switched", switched}, {"bridged", bridged}, {"fabric", fabric},
};

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof all_cases / sizeof *all_cases; i++)
        if (strcmp(argv[1], all_cases[i].name) == 0) {
            all_cases[i].run();
            return 0;
        }
    printf("no such case\n");
    return 2;
}
