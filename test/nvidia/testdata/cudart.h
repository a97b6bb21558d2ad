// SPDX-License-Identifier: Apache-2.0
//
// cudart.h: what cudart.c uses of the CUDA runtime, declared by ourselves from its
// documentation; looked up in the library that the program is given. No header of
// NVIDIA's is needed.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dim3 { unsigned x, y, z; };
struct extent { size_t width, height, depth; };
struct channel { int x, y, z, w, kind; };
struct pitched { void *at; size_t pitch, xsize, ysize; };
struct ipc_handle { char bytes[64]; };
struct pool_props { int kind, handles, location, device; void *security; char reserved[64]; };
struct launch { struct dim3 grid, block; size_t shared; void *stream, *attributes; unsigned count; };

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, TO_DEVICE = 1, TO_HOST = 2, ON_DEVICE = 3, POOL_THRESHOLD = 4 };

// A function, the suffix of its form for programs that are built with a default stream
// for each thread, and its arguments.
#define FUNCTIONS(F)                                                                          \
    F(cudaRuntimeGetVersion, "", (int *))                                                     \
    F(cudaGetDeviceCount, "", (int *))                                                        \
    F(cudaSetDevice, "", (int))                                                               \
    F(cudaGetDevice, "", (int *))                                                             \
    F(cudaMemGetInfo, "", (size_t *, size_t *))                                               \
    F(cudaGetLastError, "", (void))                                                           \
    F(cudaDeviceSynchronize, "", (void))                                                      \
    F(cudaDeviceReset, "", (void))                                                            \
    F(cudaMalloc, "", (void **, size_t))                                                      \
    F(cudaFree, "", (void *))                                                                 \
    F(cudaMallocPitch, "", (void **, size_t *, size_t, size_t))                               \
    F(cudaMalloc3D, "", (struct pitched *, struct extent))                                    \
    F(cudaMallocManaged, "", (void **, size_t, unsigned))                                     \
    F(cudaMallocArray, "", (void **, const struct channel *, size_t, size_t, unsigned))       \
    F(cudaMalloc3DArray, "", (void **, const struct channel *, struct extent, unsigned))      \
    F(cudaFreeArray, "", (void *))                                                            \
    F(cudaMallocMipmappedArray, "",                                                           \
      (void **, const struct channel *, struct extent, unsigned, unsigned))                   \
    F(cudaFreeMipmappedArray, "", (void *))                                                   \
    F(cudaHostAlloc, "", (void **, size_t, unsigned))                                         \
    F(cudaFreeHost, "", (void *))                                                             \
    F(cudaMallocAsync, "_ptsz", (void **, size_t, void *))                                    \
    F(cudaFreeAsync, "_ptsz", (void *, void *))                                               \
    F(cudaDeviceGetDefaultMemPool, "", (void **, int))                                        \
    F(cudaMemPoolCreate, "", (void **, const struct pool_props *))                            \
    F(cudaMemPoolSetAttribute, "", (void *, int, void *))                                     \
    F(cudaMemPoolTrimTo, "", (void *, size_t))                                                \
    F(cudaMemPoolDestroy, "", (void *))                                                       \
    F(cudaMallocFromPoolAsync, "_ptsz", (void **, size_t, void *, void *))                    \
    F(cudaIpcGetMemHandle, "", (struct ipc_handle *, void *))                                 \
    F(cudaIpcOpenMemHandle, "", (void **, struct ipc_handle, unsigned))                       \
    F(cudaIpcCloseMemHandle, "", (void *))                                                    \
    F(cudaMemcpy, "_ptds", (void *, const void *, size_t, int))                               \
    F(cudaMemcpyAsync, "_ptsz", (void *, const void *, size_t, int, void *))                  \
    F(cudaMemcpy2D, "_ptds", (void *, size_t, const void *, size_t, size_t, size_t, int))     \
    F(cudaMemset, "_ptds", (void *, int, size_t))                                             \
    F(cudaMemsetAsync, "_ptsz", (void *, int, size_t, void *))                                \
    F(cudaMemcpyToSymbol, "_ptds", (const void *, const void *, size_t, size_t, int))         \
    F(cudaGetSymbolAddress, "", (void **, const void *))                                      \
    F(cudaStreamCreateWithFlags, "", (void **, unsigned))                                     \
    F(cudaStreamSynchronize, "_ptsz", (void *))                                               \
    F(cudaStreamDestroy, "", (void *))                                                        \
    F(cudaStreamWaitEvent, "_ptsz", (void *, void *, unsigned))                               \
    F(cudaEventCreate, "", (void **))                                                         \
    F(cudaEventRecord, "_ptsz", (void *, void *))                                             \
    F(cudaEventSynchronize, "", (void *))                                                     \
    F(cudaEventElapsedTime, "", (float *, void *, void *))                                    \
    F(cudaEventDestroy, "", (void *))                                                         \
    F(cudaStreamBeginCapture, "_ptsz", (void *, int))                                         \
    F(cudaStreamEndCapture, "_ptsz", (void *, void **))                                       \
    F(cudaGraphGetNodes, "", (void *, void **, size_t *))                                     \
    F(cudaGraphInstantiateWithFlags, "", (void **, void *, unsigned long long))               \
    F(cudaGraphLaunch, "_ptsz", (void *, void *))                                             \
    F(cudaGraphExecDestroy, "", (void *))                                                     \
    F(cudaGraphDestroy, "", (void *))                                                         \
    F(cudaLaunchKernel, "_ptsz",                                                              \
      (const void *, struct dim3, struct dim3, void **, size_t, void *))                      \
    F(cudaLaunchCooperativeKernel, "_ptsz",                                                   \
      (const void *, struct dim3, struct dim3, void **, size_t, void *))                      \
    F(cudaLaunchKernelExC, "_ptsz", (const struct launch *, const void *, void **))           \
    F(cudaOccupancyMaxActiveBlocksPerMultiprocessor, "", (int *, const void *, int, size_t))

#define DECLARE(name, twin, args) static int(*name) args;
FUNCTIONS(DECLARE)

static int (*cudaGetDeviceProperties)(void *, int);
static const char *(*cudaGetErrorName)(int);
static void **(*__cudaRegisterFatBinary)(const void *);
static void (*__cudaRegisterFatBinaryEnd)(void **);
static void (*__cudaRegisterFunction)(void **, const void *, const char *, const char *, int, void *,
                                      void *, void *, void *, void *);
static void (*__cudaRegisterVar)(void **, void *, const char *, const char *, int, size_t, int, int);
static void (*__cudaUnregisterFatBinary)(void **);

static void *find(void *runtime, const char *name, const char *twin) {
    char form[128];
    snprintf(form, sizeof form, "%s%s", name, twin);
    void *function = dlsym(runtime, form);
    if (function) return function;
    fprintf(stderr, "no %s\n", form);
    exit(3);
}

static void look_up(const char *path, int per_thread) {
    void *rt = dlopen(path, RTLD_NOW);
    if (!rt) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
#define LOOK_UP(name, twin, args) name = (int(*) args)find(rt, #name, per_thread ? twin : "");
    FUNCTIONS(LOOK_UP)
    // From CUDA 12 on programs are built with the second form of it.
    int version;
    cudaRuntimeGetVersion(&version);
    cudaGetDeviceProperties =
        (int (*)(void *, int))find(rt, "cudaGetDeviceProperties", version < 12000 ? "" : "_v2");
    cudaGetErrorName = (const char *(*)(int))find(rt, "cudaGetErrorName", "");
    __cudaRegisterFatBinary = (void **(*)(const void *))find(rt, "__cudaRegisterFatBinary", "");
    __cudaRegisterFatBinaryEnd = (void (*)(void **))find(rt, "__cudaRegisterFatBinaryEnd", "");
    __cudaRegisterFunction = (void (*)(void **, const void *, const char *, const char *, int, void *, void *,
                                       void *, void *, void *))find(rt, "__cudaRegisterFunction", "");
    __cudaRegisterVar = (void (*)(void **, void *, const char *, const char *, int, size_t, int, int))find(
        rt, "__cudaRegisterVar", "");
    __cudaUnregisterFatBinary = (void (*)(void **))find(rt, "__cudaUnregisterFatBinary", "");
}
