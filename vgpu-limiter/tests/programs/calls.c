// SPDX-License-Identifier: Apache-2.0
//
// calls: makes the CUDA calls that standard input names, one per line, and
// answers each with a line: the call, its CUresult, and what it returned. Memory
// is kept in numbered places. Sizes are MiB.

#include "cuda.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PLACES 65536
#define MIB ((size_t)1 << 20)

static CUdeviceptr ptr[PLACES];
static CUmemGenericAllocationHandle handle[PLACES];
static CUarray array[PLACES];
static CUmipmappedArray mipmap[PLACES];
static CUmemoryPool pool[PLACES];
static CUcontext context[PLACES];
static CUstream stream[PLACES];
static CUgraphExec exec[PLACES];
static CUfunction kernel;

static void answer(const char *call, int result) {
    printf("%s %d\n", call, result);
}

static int create(int place, size_t bytes, int device) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    return cuMemCreate(&handle[place], bytes, &prop, 0);
}

static int map(int place, size_t bytes) {
    int result = cuMemAddressReserve(&ptr[place], bytes, 0, 0, 0);
    return result != 0 ? result : (int)cuMemMap(ptr[place], bytes, 0, handle[place], 0);
}

static int make_array(int place, size_t width, size_t height, size_t depth, int levels, int flags) {
    CUDA_ARRAY3D_DESCRIPTOR solid = {width, height, depth, CU_AD_FORMAT_FLOAT, 4, (unsigned)flags};
    CUDA_ARRAY_DESCRIPTOR flat = {width, height, CU_AD_FORMAT_FLOAT, 4};
    if (levels > 0)
        return cuMipmappedArrayCreate(&mipmap[place], &solid, (unsigned)levels);
    return depth > 0 ? cuArray3DCreate_v2(&array[place], &solid) : cuArrayCreate_v2(&array[place], &flat);
}

static int make_pool(int place, int device) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    cuuint64_t keep = UINT64_MAX;
    int result = cuMemPoolCreate(&pool[place], &props);
    return result != 0 ? result : (int)cuMemPoolSetAttribute(pool[place], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
}

// Threads that take and give back memory as fast as they can; at the end each
// keeps what it can get, in steps of one MiB.
static atomic_int granted;
static pthread_barrier_t barrier;

static void *race(void *argument) {
    CUdeviceptr p;
    cuCtxSetCurrent(context[0]);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 2000; i++)
        if (cuMemAlloc_v2(&p, MIB * (1 + (size_t)i % 7)) == CUDA_SUCCESS)
            cuMemFree_v2(p);
    pthread_barrier_wait(&barrier);
    while (cuMemAlloc_v2(&p, MIB) == CUDA_SUCCESS)
        atomic_fetch_add(&granted, 1);
    return argument;
}

static int race_all(int threads) {
    pthread_t thread[64];
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, race, NULL);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    return granted;
}

// Threads that allocate, launch and free for as long as the process lives. They
// report the first error that isn't for want of memory.
static atomic_int churn_error;
static atomic_int churned;

static int launch(int place, long microseconds, int count);

static void *churn(void *argument) {
    CUstream own;
    CUdeviceptr p, q;
    int place = (int)(intptr_t)argument, result = cuCtxSetCurrent(context[0]);
    if (result == 0)
        result = cuStreamCreate(&own, CU_STREAM_NON_BLOCKING);
    stream[place] = own;
    for (int i = 0; result == 0; i++) {
        int first = cuMemAlloc_v2(&p, MIB * (1 + (size_t)i % 4)), second = cuMemAlloc_v2(&q, MIB);
        result = launch(place, 10, 1);
        if (result == 0 && first == 0)
            result = cuMemFree_v2(p);
        if (result == 0 && second == 0)
            result = cuMemFree_v2(q);
        if (first != 0 && first != CUDA_ERROR_OUT_OF_MEMORY)
            result = first;
        if (second != 0 && second != CUDA_ERROR_OUT_OF_MEMORY)
            result = second;
        atomic_fetch_add(&churned, 1);
    }
    churn_error = result;
    return NULL;
}

static int start_churning(int threads) {
    pthread_t thread;
    int result = launch(0, 1, 0); // loads the kernel
    for (int i = 0; result == 0 && i < threads; i++)
        result = pthread_create(&thread, NULL, churn, (void *)(intptr_t)(1000 + i));
    return result;
}

static int load_kernel(void) {
    CUmodule module;
    int result = kernel != NULL ? 0 : (int)cuModuleLoadData(&module, "simgpu-module 1\nkernel spin 0 argument\n");
    return result != 0 || kernel != NULL ? result : (int)cuModuleGetFunction(&kernel, module, "spin");
}

static int launch(int place, long microseconds, int count) {
    unsigned long long ns = (unsigned long long)microseconds * 1000;
    void *params[] = {&ns};
    int result = load_kernel();
    for (int i = 0; result == 0 && i < count; i++)
        result = cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream[place], params, NULL);
    return result;
}

// So many launches of one microsecond, of so many kinds in turn, on one stream or on this
// and the next ones in turn.
static int launch_kinds(int place, int kinds, int count, int streams) {
    unsigned long long ns = 1000;
    void *params[] = {&ns};
    int result = load_kernel();
    for (int i = 0; result == 0 && i < count; i++)
        result = cuLaunchKernel(kernel, 1 + (unsigned)(i % kinds), 1, 1, 1, 1, 1, 0,
                                stream[place + (streams > 1 ? i / kinds % streams : 0)], params, NULL);
    return result;
}

// A graph of `count` kernels by stream capture; 1000 if it has other nodes too.
static int capture(int place, long microseconds, int count) {
    CUgraph graph;
    size_t nodes = 0;
    int result = cuStreamBeginCapture_v2(stream[place], CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (result == 0)
        result = launch(place, microseconds, count);
    if (result == 0)
        result = cuStreamEndCapture(stream[place], &graph);
    if (result == 0)
        result = cuGraphGetNodes(graph, NULL, &nodes);
    if (result == 0 && nodes != (size_t)count)
        return 1000;
    return result != 0 ? result : (int)cuGraphInstantiateWithFlags(&exec[place], graph, 0);
}

#include "graphs.h"
#include "ahead.h"
#include "modules.h"
#include "sharing.h"
#include "sparse.h"
#include "multicast.h"
#include "uring.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

// Keeps the device as busy as it may for so long: with kernels, on streams in
// turn, or with the stream's graph. Answers the milliseconds it really took.
static int burn(int streams, long microseconds, long milliseconds) {
    double began = now();
    for (int i = 0; now() < began + (double)milliseconds; i++) {
        int result = microseconds > 0 ? launch(1 + i % streams, microseconds, 1)
                                      : (int)cuGraphLaunch(exec[1], stream[1]);
        if (result != 0)
            return -result;
    }
    cuCtxSynchronize();
    return (int)(now() - began);
}

#include "copies.h"

#include "dying.h"

static int open_some(void) {
    int fd = -1;
    for (int i = 0; i < 20; i++)
        fd = open("/dev/null", O_RDONLY);
    return fd < 0;
}

int main(void) {
    char line[256], call[32], words[200];
    setvbuf(stdout, NULL, _IOLBF, 0);
    setvbuf(stdin, NULL, _IONBF, 0); // what is not read yet is for the program after exec
    while (fgets(line, sizeof line, stdin) != NULL) {
        long a = 0, b = 0, c = 0, d = 0, e = 0;
        words[0] = 0;
        sscanf(line, "%*s %199s", words);
        if (sscanf(line, "%31s %ld %ld %ld %ld %ld", call, &a, &b, &c, &d, &e) < 1)
            continue;
#define ON(name, expression)                 \
    else if (strcmp(call, name) == 0) {      \
        answer(call, (int)(expression));     \
    }
        if (strcmp(call, "info") == 0) {
            size_t free_bytes = 0, total = 0;
            int result = cuMemGetInfo_v2(&free_bytes, &total);
            printf("info %d %zu %zu\n", result, free_bytes, total);
        } else if (strcmp(call, "total") == 0) {
            size_t total = 0;
            int result = cuDeviceTotalMem_v2(&total, (CUdevice)a);
            printf("total %d %zu\n", result, total);
        } else if (strcmp(call, "churned") == 0) {
            printf("churned %d %d\n", churn_error, churned);
        } else if (strcmp(call, "fork") == 0) {
            // A child that asks for memory with its parent's state.
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                CUdeviceptr p;
                _exit(cuMemAlloc_v2(&p, MIB) == CUDA_SUCCESS ? 1 : 0);
            }
            int status = 0;
            waitpid(child, &status, 0);
            answer(call, status);
        }
        ON("close_descriptors", close_range(3, 1000, 0))
        ON("open_descriptors", open_some())
        ON("use_up_descriptors", use_up_descriptors())
        ON("uring", uring_begin())
        ON("uring_write_back", uring_write_back())
        ON("uring_close_descriptors", uring_close_descriptors())
        ON("uring_hold", uring_hold(exported[a]))
        ON("uring_drop", uring_drop())
        ON("cancel_waiting", cancelled_waiting((int)a))
        ON("launch_by_threads", launch_by_threads((int)a, b, (int)c, (int)d))
        ON("capture_by_threads", capture_by_threads((int)a, b, (int)c))
        ON("launch_on_own_streams", launch_on_own_streams((int)a, b, (int)c))
        ON("limit", limit((int)a, b))
        ON("cancel_module", cancelled(loads_module))
        ON("cancel_launch", cancelled(launches))
        ON("exec_self", execl("/proc/self/exe", "calls", (char *)NULL))
        ON("exec_cat", execl("/bin/cat", "cat", (char *)NULL))
        ON("nth", syscall(SYS_getpgid, -1000 - a) != -1)
        ON("init", cuInit(0))
        ON("primary", cuDevicePrimaryCtxRetain(&context[a], (CUdevice)b))
        ON("release_primary", cuDevicePrimaryCtxRelease_v2((CUdevice)a))
        ON("reset_primary", cuDevicePrimaryCtxReset_v2((CUdevice)a))
        ON("context", cuCtxCreate_v2(&context[a], 0, (CUdevice)b))
        ON("current", cuCtxSetCurrent(context[a]))
        ON("destroy_context", cuCtxDestroy_v2(context[a]))
        ON("alloc", cuMemAlloc_v2(&ptr[a], MIB * (size_t)b))
        ON("alloc_bytes", cuMemAlloc_v2(&ptr[a], (size_t)b))
        ON("pitch", cuMemAllocPitch_v2(&ptr[a], &(size_t){0}, (size_t)b, (size_t)c, 4))
        ON("managed", cuMemAllocManaged(&ptr[a], MIB * (size_t)b, CU_MEM_ATTACH_GLOBAL))
        ON("free", cuMemFree_v2(ptr[a]))
        ON("stream", cuStreamCreate(&stream[a], CU_STREAM_NON_BLOCKING))
        ON("synchronize", cuStreamSynchronize(stream[a]))
        ON("launch", launch((int)a, b, (int)c))
        ON("launch_kinds", launch_kinds((int)a, (int)b, (int)c, (int)d))
        ON("graph", cuGraphLaunch(exec[a], stream[b]))
        ON("begin_capture", cuStreamBeginCapture_v2(stream[a], CU_STREAM_CAPTURE_MODE_GLOBAL))
        ON("end_capture", cuStreamEndCapture(stream[a], &(CUgraph){NULL}))
        ON("capture", capture((int)a, b, (int)c))
        ON("graph_alloc", graph_alloc((int)a, MIB * (size_t)b, (int)c, (int)d))
        ON("graph_launch", cuGraphLaunch(graph_exec[a], stream[b]))
        ON("graph_upload", cuGraphUpload(graph_exec[a], stream[b]))
        ON("graph_destroy", cuGraphExecDestroy(graph_exec[a]))
        ON("graph_free", cuMemFree_v2(graph_ptr[a]))
        ON("graph_trim", cuDeviceGraphMemTrim((CUdevice)a))
        ON("module", load_module((int)a, MIB * (size_t)b))
        ON("unload_module", cuModuleUnload(module[a]))
        ON("lazy_module", load_lazy_module((int)a, MIB * (size_t)b))
        ON("lazy_library", load_lazy_library((int)a, MIB * (size_t)b))
        ON("private_module", load_past_the_api((int)a, MIB * (size_t)b))
        ON("global", global_of(module[a]))
        ON("library_global", global_of_library((int)a))
        ON("function", function_of_module((int)a))
        ON("library_function", function_of_library((int)a, (int)b))
        ON("library_launch", launch_of_library((int)a))
        ON("load_beside", load_beside((int)a))
        ON("load_at_once", load_at_once((int)a))
        ON("library", load_library((int)a, MIB * (size_t)b))
        ON("unload_library", cuLibraryUnload(library[a]))
        ON("directory", chdir(words))
        ON("ipc_get", ipc_get((int)a, (int)b))
        ON("share_beside", share_beside((int)a, (int)b))
        ON("ipc_open", ipc_open((int)a, (int)b))
        ON("ipc_close", cuIpcCloseMemHandle(ptr[a]))
        ON("listen", listen_at((int)a))
        ON("send", send_descriptor((int)a, (int)b))
        ON("receive", receive_descriptor((int)a))
        ON("export", cuMemExportToShareableHandle(&exported[a], handle[b], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
        ON("close", close(exported[a]))
        ON("import", import_handle((int)a))
        ON("create_fabric", create_fabric((int)a, MIB * (size_t)b, (int)c))
        ON("export_fabric", export_fabric((int)a, (int)b))
        ON("import_fabric", import_fabric((int)a, (int)b))
        ON("export_pool", cuMemPoolExportToShareableHandle(&exported[a], pool[b], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
        ON("import_pool", import_pool((int)a))
        ON("export_pointer", export_pointer((int)a, (int)b))
        ON("import_pointer", import_pointer((int)a, (int)b, (int)c))
        ON("external", import_external((int)a, MIB * (size_t)b))
        ON("destroy_external", cuDestroyExternalMemory(external[a]))
        ON("multicast", multicast((int)a, MIB * (size_t)b, 1))
        ON("bind_awaited", bind_awaited((int)a, (int)b, MIB * (size_t)c))
        ON("bind", cuMulticastBindMem(handle[a], 0, handle[b], 0, MIB * (size_t)c, 0))
        ON("bind_mapped", cuMulticastBindAddr(handle[a], MIB * (size_t)c, ptr[b], MIB * (size_t)c, 0))
        ON("unbind", cuMulticastUnbind(handle[a], 0, MIB * (size_t)b, MIB * (size_t)c))
        ON("ahead", ahead((int)a, b, (int)c))
        ON("copy_all", copy_all())
        ON("burn_otherwise", burn_otherwise((int)a, b))
        ON("capture_copies", capture_copies())
        ON("burn", burn((int)a, b, c))
        ON("destroy_stream", cuStreamDestroy_v2(stream[a]))
        ON("async", cuMemAllocAsync(&ptr[a], MIB * (size_t)b, stream[c]))
        ON("free_async", cuMemFreeAsync(ptr[a], stream[b]))
        ON("pool", make_pool((int)a, (int)b))
        ON("destroy_pool", cuMemPoolDestroy(pool[a]))
        ON("trim_pool", cuMemPoolTrimTo(pool[a], 0))
        ON("from_pool", cuMemAllocFromPoolAsync(&ptr[a], MIB * (size_t)b, pool[c], stream[d]))
        ON("create", create((int)a, MIB * (size_t)b, (int)c))
        ON("map", map((int)a, MIB * (size_t)b))
        ON("unmap", cuMemUnmap(ptr[a], MIB * (size_t)b))
        ON("release", cuMemRelease(handle[a]))
        ON("retain", cuMemRetainAllocationHandle(&handle[a], (void *)(uintptr_t)(ptr[b] + MIB)))
        ON("array", make_array((int)a, (size_t)b, (size_t)c, (size_t)d, 0, (int)e))
        ON("destroy_array", cuArrayDestroy(array[a]))
        ON("mipmap", make_array((int)a, (size_t)b, (size_t)c, (size_t)d, (int)e, 0))
        ON("destroy_mipmap", cuMipmappedArrayDestroy(mipmap[a]))
        ON("tiles", make_tiles((int)a, MIB * (size_t)b))
        ON("sparse", make_sparse((int)a, (size_t)b, (size_t)c, (int)d))
        ON("map_tiles", map_tiles((int)a, handle[b], (int)c, (int)d, (int)e))
        ON("unmap_tiles", map_tiles((int)a, 0, (int)b, (int)c, (int)d))
        ON("map_tail", map_tail((int)a, handle[b]))
        ON("unmap_tail", map_tail((int)a, 0))
        ON("churn", start_churning((int)a))
        ON("race", race_all((int)a))
        else answer(call, -1);
    }
    return 0;
}
