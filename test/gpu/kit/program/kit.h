// SPDX-License-Identifier: Apache-2.0
//
// The driver's functions, found at run time: a machine without a driver gets a sentence
// instead of the loader's error, and an older driver lacks what is optional.
#ifndef VERNIER_KIT_H
#define VERNIER_KIT_H

#include "cuda.h"

#include <stdbool.h>
#include <stdio.h>

#define MIB ((size_t)1 << 20)

#define NEEDED(X)                                                                                \
    X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName)        \
    X(cuDeviceGetAttribute) X(cuDeviceGetUuid) X(cuDeviceTotalMem_v2)                            \
    X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuMemGetInfo_v2)        \
    X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemAllocPitch_v2) X(cuMemAllocManaged)                  \
    X(cuArrayCreate_v2) X(cuArray3DCreate_v2) X(cuArrayDestroy) X(cuMipmappedArrayCreate)        \
    X(cuMipmappedArrayDestroy) X(cuStreamCreate) X(cuStreamSynchronize) X(cuModuleLoadData)      \
    X(cuModuleUnload) X(cuModuleGetFunction) X(cuModuleGetGlobal_v2) X(cuLaunchKernel)           \
    X(cuEventCreate) X(cuEventRecord) X(cuEventSynchronize) X(cuEventQuery) X(cuEventElapsedTime)                \
    X(cuMemcpyDtoH_v2) X(cuMemcpyHtoD_v2) X(cuMemsetD8_v2) X(cuMemcpyPeer) X(cuDeviceCanAccessPeer)    \
    X(cuDeviceGetP2PAttribute)

// Each came with some CUDA from 9 to 12.
#define OPTIONAL(X)                                                                              \
    X(cuMemAllocAsync) X(cuMemFreeAsync) X(cuMemPoolCreate) X(cuMemPoolDestroy)                  \
    X(cuMemPoolTrimTo) X(cuMemAllocFromPoolAsync) X(cuDeviceGetDefaultMemPool) X(cuMemCreate)    \
    X(cuMemRelease) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap)         \
    X(cuMemSetAccess) X(cuGraphCreate) X(cuGraphAddMemAllocNode) X(cuGraphInstantiateWithFlags)  \
    X(cuGraphLaunch) X(cuGraphExecDestroy) X(cuGraphDestroy) X(cuDeviceGraphMemTrim)             \
    X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) X(cuLaunchCooperativeKernel)                \
    X(cuLaunchKernelEx) X(cuLibraryLoadData) X(cuLibraryGetKernel)

#define DECLARE(name) extern __typeof__(name) *p_##name;
NEEDED(DECLARE)
OPTIONAL(DECLARE)
#undef DECLARE

// kit.c
void fail(const char *call, int result); // prints {"error":…} and ends the program
extern void (*on_failure)(int result);   // called before
#define MUST(name, ...)                                  \
    do {                                                 \
        CUresult must_ = p_##name(__VA_ARGS__);          \
        if (must_ != CUDA_SUCCESS) fail(#name, must_);   \
    } while (0)
double now(void); // seconds
void use(int device);
size_t free_bytes(void);
CUfunction kernel(const char *name);
const char *image(void); // the kernels' file
extern int multiprocessors;

// memory.c
void paths(size_t most);
void take(size_t most);
void take_in_processes(int processes, size_t most);
void die_and_retake(size_t most);
void freed_after(int pid, size_t bytes);
void peers(void);

// work.c
void calibrate(void);
void load(double seconds, unsigned long long iterations, const char *kind, unsigned ahead);
void kinds(void);
void cost(const char *call);

// nvml.c
void nvml_facts(void);
void nvml_shares(double seconds);

#endif
