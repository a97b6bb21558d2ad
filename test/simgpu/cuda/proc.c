// SPDX-License-Identifier: Apache-2.0
//
// proc.c: cuGetProcAddress.
//
// Invariants:
// - A name without suffix means the newest form that the asked-for version has;
//   the driver's own version is a second bound: an older driver does not know
//   newer forms and functions.
// - With the per-thread flag the _ptsz or _ptds twin is given where there is one.
// - Addresses are this library's own, whoever else in the process defines the
//   same names.
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Every exported function, sorted by name (made by proc_table.awk).
struct proc {
    const char *name;
    void *function;
};
extern const struct proc proc_table[];
extern const size_t proc_count;

// Forms of a name, oldest first: from which API version on it means which
// symbol. Names that are not listed exist in one form from the beginning, or
// have a _v2 that replaced an unsuffixed form in CUDA 3.2.
static const struct form {
    const char *name, *symbol;
    int since;
} forms[] = {
    {"cuCtxCreate", "cuCtxCreate_v2", 3020},
    {"cuCtxCreate", "cuCtxCreate_v3", 11040},
    {"cuCtxCreate", "cuCtxCreate_v4", 12050},
    {"cuCtxDestroy", "cuCtxDestroy_v2", 4000},
    {"cuCtxPopCurrent", "cuCtxPopCurrent_v2", 4000},
    {"cuCtxPushCurrent", "cuCtxPushCurrent_v2", 4000},
    {"cuStreamDestroy", "cuStreamDestroy_v2", 4000},
    {"cuEventDestroy", "cuEventDestroy_v2", 4000},
    {"cuMemHostRegister", "cuMemHostRegister_v2", 6050},
    {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease", 7000},
    {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 11000},
    {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset", 7000},
    {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", 11000},
    {"cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxSetFlags_v2", 11000},
    {"cuIpcOpenMemHandle", "cuIpcOpenMemHandle", 4010},
    {"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", 11000},
    {"cuStreamBeginCapture", "cuStreamBeginCapture", 10000},
    {"cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010},
    {"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo", 10010},
    {"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v2", 11030},
    {"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v3", 12030},
    {"cuStreamUpdateCaptureDependencies", "cuStreamUpdateCaptureDependencies", 11030},
    {"cuStreamUpdateCaptureDependencies", "cuStreamUpdateCaptureDependencies_v2", 12030},
    {"cuStreamWriteValue32", "cuStreamWriteValue32", 8000},
    {"cuStreamWriteValue32", "cuStreamWriteValue32_v2", 11070},
    {"cuStreamGetCtx", "cuStreamGetCtx", 9020},
    {"cuStreamGetCtx", "cuStreamGetCtx_v2", 12050},
    {"cuGraphInstantiate", "cuGraphInstantiate", 10000},
    {"cuGraphInstantiate", "cuGraphInstantiate_v2", 11000},
    {"cuGraphInstantiate", "cuGraphInstantiateWithFlags", 12000},
    {"cuGraphAddKernelNode", "cuGraphAddKernelNode", 10000},
    {"cuGraphAddKernelNode", "cuGraphAddKernelNode_v2", 12000},
    {"cuGraphKernelNodeGetParams", "cuGraphKernelNodeGetParams", 10000},
    {"cuGraphKernelNodeGetParams", "cuGraphKernelNodeGetParams_v2", 12000},
    {"cuGraphKernelNodeSetParams", "cuGraphKernelNodeSetParams", 10000},
    {"cuGraphKernelNodeSetParams", "cuGraphKernelNodeSetParams_v2", 12000},
    {"cuGraphExecKernelNodeSetParams", "cuGraphExecKernelNodeSetParams", 10010},
    {"cuGraphExecKernelNodeSetParams", "cuGraphExecKernelNodeSetParams_v2", 12000},
    {"cuGraphExecUpdate", "cuGraphExecUpdate", 10020},
    {"cuGraphExecUpdate", "cuGraphExecUpdate_v2", 12000},
    {"cuGraphAddDependencies", "cuGraphAddDependencies", 10000},
    {"cuGraphAddDependencies", "cuGraphAddDependencies_v2", 12030},
    {"cuGraphAddNode", "cuGraphAddNode", 12020},
    {"cuGraphAddNode", "cuGraphAddNode_v2", 12030},
    {"cuDeviceGetUuid", "cuDeviceGetUuid", 9020},
    {"cuDeviceGetUuid", "cuDeviceGetUuid_v2", 11040},
    {"cuMemAdvise", "cuMemAdvise", 8000},
    {"cuMemAdvise", "cuMemAdvise_v2", 12020},
    {"cuMemPrefetchAsync", "cuMemPrefetchAsync", 8000},
    {"cuMemPrefetchAsync", "cuMemPrefetchAsync_v2", 12020},
    {"cuEventElapsedTime", "cuEventElapsedTime", 2000},
    {"cuEventElapsedTime", "cuEventElapsedTime_v2", 12080},
    {"cuGetProcAddress", "cuGetProcAddress", 11030},
    {"cuGetProcAddress", "cuGetProcAddress_v2", 12000},
    {"cuMemAllocAsync", "cuMemAllocAsync", 11020},
    {"cuMemFreeAsync", "cuMemFreeAsync", 11020},
    {"cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 11020},
    {"cuLaunchKernelEx", "cuLaunchKernelEx", 11060},
    {"cuLibraryLoadData", "cuLibraryLoadData", 12000},
    {"cuLibraryGetKernel", "cuLibraryGetKernel", 12000},
    {"cuKernelGetFunction", "cuKernelGetFunction", 12000},
    {"cuStreamGetId", "cuStreamGetId", 12000},
    {"cuCtxGetId", "cuCtxGetId", 12000},
    {"cuStreamBeginCaptureToGraph", "cuStreamBeginCaptureToGraph", 12030},
    {"cuStreamGetDevice", "cuStreamGetDevice", 12080},
    {"cuMemGetDefaultMemPool", "cuMemGetDefaultMemPool", 13000},
    {"cuMemGetMemPool", "cuMemGetMemPool", 13000},
    {"cuMemSetMemPool", "cuMemSetMemPool", 13000},
    {"cuMemcpyBatchAsync", "cuMemcpyBatchAsync", 12080},
    {"cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2", 13000},
    {"cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync", 12080},
    {"cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync_v2", 13000},
    {"cuMemcpyWithAttributesAsync", "cuMemcpyWithAttributesAsync", 13020},
    {"cuMemcpy3DWithAttributesAsync", "cuMemcpy3DWithAttributesAsync", 13020},
};

static int by_name(const void *key, const void *entry) {
    return strcmp(key, ((const struct proc *)entry)->name);
}

static void *exported(const char *name) {
    const struct proc *p = bsearch(name, proc_table, proc_count, sizeof *p, by_name);
    return p ? p->function : NULL;
}

// resolve finds the symbol that a name means at a version; NULL for none, with
// *known telling whether some version has it.
static const char *resolve(const char *name, int version, char *buffer, size_t size, bool *known) {
    const char *found = NULL;
    *known = false;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(forms[i].name, name) != 0) continue;
        *known = true;
        if (forms[i].since <= version) found = forms[i].symbol;
    }
    if (*known) return found;
    snprintf(buffer, size, "%s_v2", name);
    if (exported(buffer)) {
        *known = true;
        return version >= 3020 ? buffer : NULL;
    }
    *known = exported(name) != NULL;
    return *known ? name : NULL;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    char suffixed[128], twin[160];
    bool known;
    int driver;
    NEED(name && function && flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    CHECK(cuDriverGetVersion(&driver));
    *function = NULL;
    const char *symbol =
        resolve(name, version < driver ? version : driver, suffixed, sizeof suffixed, &known);
    if (status)
        *status = symbol  ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    // The second form leaves the verdict to status where one is asked for.
    if (!symbol) return status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    if (flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
        snprintf(twin, sizeof twin, "%s_ptsz", symbol);
        *function = exported(twin);
        snprintf(twin, sizeof twin, "%s_ptds", symbol);
        if (!*function) *function = exported(twin);
    }
    if (!*function) *function = exported(symbol);
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
