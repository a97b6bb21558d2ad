// SPDX-License-Identifier: Apache-2.0
//
// A driver without a device behind it: one device of 80 GiB, memory that is only
// numbers, launches that take no time and are measured at 20 µs. It has little
// that a program doesn't call itself: it can't be asked about captures, which pool
// it takes memory from or what that has reserved, and takes no notice of flags.
// Nothing in it waits or is shared, so a process that is stopped within it keeps
// nobody from anything: whoever waits then, waits for the library.

#include "cuda.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// A kernel that is to run so long has a fault that ends its context: all that comes after
// it is answered so.
#define LOSING_NS 700000ull
#define ILLEGAL_ADDRESS ((CUresult)700)

static _Thread_local CUcontext current;
static char context;
static _Atomic CUresult lost = CUDA_SUCCESS;

CUresult cuInit(unsigned flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0x42, sizeof *uuid);
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    *bytes = (size_t)80 << 30;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device) {
    *ctx = (CUcontext)(void *)&context;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuCtxSetCurrent(CUcontext ctx) {
    current = ctx;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *ctx) {
    *ctx = current;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return current != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

// Handles are numbers that nothing else has.
static void *handle(void) {
    static atomic_uintptr_t last = 1 << 20;
    return (void *)(atomic_fetch_add(&last, 512) + 512);
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes) {
    *ptr = (CUdeviceptr)(uintptr_t)handle();
    return bytes != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc) {
    if (desc->Width * (desc->Height != 0 ? desc->Height : 1) > (size_t)16 << 20)
        abort(); // no test's container has as much: not even its twin may be asked for
    *array = handle();
    return CUDA_SUCCESS;
}
CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc) {
    return cuArray3DCreate_v2(array, &(CUDA_ARRAY3D_DESCRIPTOR){.Width = desc->Width, .Height = desc->Height});
}
CUresult cuArrayDestroy(CUarray array) { return array != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *need, CUarray array, CUdevice device) {
    need->size = (size_t)64 << 20;
    return array != NULL && device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFree_v2(CUdeviceptr ptr) { return ptr != 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

// A handle that is opened again gives the same address, and has to be closed as often.
static atomic_int opened;

CUresult cuIpcGetMemHandle(CUipcMemHandle *ipc, CUdeviceptr ptr) {
    memset(ipc, 0, sizeof *ipc);
    memcpy(ipc, &ptr, sizeof ptr);
    return ptr != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle ipc, unsigned flags) {
    memcpy(ptr, &ipc, sizeof *ptr);
    opened += flags == 1;
    return flags == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr ptr) {
    return ptr != 0 && opened-- > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    *pool = handle();
    return props != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    (void)attribute;
    return pool != NULL && value != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream) {
    (void)stream;
    return pool != NULL ? cuMemAlloc_v2(ptr, bytes) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream) {
    (void)stream;
    return cuMemAlloc_v2(ptr, bytes);
}
CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream) {
    (void)stream;
    return cuMemFree_v2(ptr);
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    *stream = handle();
    return flags <= 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx) {
    *ctx = (CUcontext)(void *)&context;
    return stream != (CUstream)1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
static atomic_size_t launched; // since a capture began

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    (void)mode;
    launched = 0;
    return stream != (CUstream)1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    *graph = handle();
    return stream != (CUstream)1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    *count = launched;
    return graph != NULL && nodes == NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    (void)flags;
    *exec = handle();
    return graph != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuStreamSynchronize(CUstream stream) {
    return stream != (CUstream)1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    *module = handle();
    return image != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = handle();
    return module != NULL && name != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void **params, void **extra) {
    (void)stream, (void)extra, (void)shared;
    if (lost != CUDA_SUCCESS)
        return lost;
    if (params != NULL && *(unsigned long long *)params[0] == LOSING_NS)
        lost = ILLEGAL_ADDRESS;
    launched++;
    return f != NULL && gx * gy * gz * bx * by * bz != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Takes memory, as a driver does for what it hasn't had yet.
CUresult cuEventCreate(CUevent *event, unsigned flags) {
    void *memory = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    munmap(memory, 4096);
    if (lost != CUDA_SUCCESS)
        return lost;
    *event = handle();
    return flags <= 7 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)stream;
    return event != NULL ? lost : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuEventQuery(CUevent event) { return event != NULL ? lost : CUDA_ERROR_INVALID_VALUE; }
CUresult cuEventSynchronize(CUevent event) { return cuEventQuery(event); }
CUresult cuEventDestroy_v2(CUevent event) { return cuEventQuery(event); }
CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    *ms = 0.02f;
    return start != NULL && end != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
