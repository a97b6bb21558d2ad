// SPDX-License-Identifier: Apache-2.0
//
// Part of unit/cuda: what NVIDIA's runtime library uses beside what programs use, and
// as it does. That the library itself is content is seen with the library
// (test/nvidia).
#define _GNU_SOURCE
#include "case.h"

#include <string.h>

static void **table(const char *id) {
    CUuuid uuid;
    const void *table = NULL;
    for (int i = 0; i < 16; i++) {
        unsigned byte = 0;
        SAME(sscanf(id + 2 * i, "%2x", &byte), 1);
        uuid.bytes[i] = (char)byte;
    }
    CUresult ret = cuGetExportTable(&table, &uuid);
    SAME(ret == CUDA_SUCCESS, table != NULL);
    return (void **)table;
}

static CUcontext ended;
static void *ended_key, *ended_value;
static void end(CUcontext ctx, void *key, void *value) { ended = ctx, ended_key = key, ended_value = value; }

// A context's handle is there before it, and what is kept with it is told its end.
static void contexts_of_the_runtime(void **interface, void **storage) {
    CUcontext handle, other;
    unsigned flags;
    int active = -1, key, value;
    void *got;
    CUresult (*primary)(CUcontext *, CUdevice) = (CUresult(*)(CUcontext *, CUdevice))interface[2];
    CUresult (*keep)(CUcontext, void *, void *, void *) =
        (CUresult(*)(CUcontext, void *, void *, void *))storage[0];
    CUresult (*forget)(CUcontext, void *) = (CUresult(*)(CUcontext, void *))storage[1];
    CUresult (*find)(void **, CUcontext, void *) = (CUresult(*)(void **, CUcontext, void *))storage[2];
    OK(primary(&handle, 0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    SAME(active, 0);
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    TRUE(ctx == handle);
    OK(cuCtxCreate_v2(&other, 0, 0));
    SAME(find(&got, ctx, &key), CUDA_ERROR_INVALID_HANDLE);
    OK(keep(NULL, &key, &active, NULL));  // the current one
    OK(keep(ctx, &key, &value, (void *)end));
    OK(find(&got, NULL, &key));
    TRUE(got == &active);
    OK(forget(other, &key));
    SAME(find(&got, other, &key), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxDestroy_v2(other));
    TRUE(!ended);
    OK(find(&got, NULL, &key));
    TRUE(got == &value);
    OK(cuDevicePrimaryCtxReset(0));
    TRUE(ended == ctx && ended_key == &key && ended_value == &value);
    SAME(find(&got, NULL, &key), CUDA_ERROR_INVALID_HANDLE);
}

static struct {
    uint32_t magic;
    uint16_t version, bytes;
    uint64_t rest;
    struct {
        uint16_t kind, version;
        uint32_t bytes, payload, rest;
        char text[64];
    } entries[2];
} fat = {0xba55ed50, 1, 16, sizeof fat - 16, {{2, 0x101, 16, 64, 0, "\177ELF"}, {1, 0x101, 16, 64, 0, "simgpu-module 1\nkernel k 1000\nglobal g 1048576\n"}}};
static struct {
    uint32_t magic, version;
    const void *entries;
    void *unused;
} wrapper = {0x466243b1, 1, &fat, NULL};

// A program's modules are in fat binaries.
static void modules_of_the_runtime(void **interface) {
    CUmodule m;
    CUfunction f;
    CUresult (*load)(CUmodule *, const void *, void *, void *, unsigned) =
        (CUresult(*)(CUmodule *, const void *, void *, void *, unsigned))interface[6];
    size_t before = available();
    OK(load(&m, &wrapper, NULL, NULL, 0));
    SAME(before - available(), MIB);
    OK(cuModuleGetFunction(&f, m, "k"));
    OK(cuModuleUnload(m));
    OK(cuModuleLoadData(&m, &fat));
    OK(cuModuleUnload(m));
    SAME(available(), before);
    fat.entries[1].text[0] = 'S';
    SAME(cuModuleLoadFatBinary(&m, &wrapper), CUDA_ERROR_NO_BINARY_FOR_GPU);
}

// A library's memory is each context's.
static void libraries_of_the_runtime(void) {
    static const char image[] = "simgpu-module 1\nkernel k 1000\nglobal g 1048576\ncode k 2097152\n";
    CUlibrary l, of;
    CUkernel k;
    CUmodule m, again;
    CUfunction f;
    CUcontext other;
    CUdeviceptr g;
    size_t before = available(), bytes;
    OK(cuCtxSetCurrent(NULL));
    OK(cuLibraryLoadData(&l, image, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&k, l, "k"));
    SAME(cuKernelGetFunction(&f, k), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxSetCurrent(ctx));
    SAME(before - available(), 0);
    OK(cuLibraryGetModule(&m, l));
    SAME(before - available(), MIB);
    OK(cuModuleGetFunction(&f, m, "k"));
    SAME(before - available(), 3 * MIB);
    OK(cuLibraryGetModule(&again, l));
    TRUE(again == m);
    OK(cuKernelGetLibrary(&of, k));
    TRUE(of == l);
    OK(cuCtxCreate_v2(&other, 0, 0));
    launch((CUfunction)k, NULL);
    SAME(before - available(), 6 * MIB);
    OK(cuCtxDestroy_v2(other));
    SAME(before - available(), 3 * MIB);
    OK(cuDevicePrimaryCtxReset(0));
    SAME(before - available(), 0);
    OK(cuLibraryGetGlobal(&g, &bytes, l, "g"));
    SAME(bytes, MIB);
    SAME(before - available(), MIB);
    OK(cuLibraryUnload(l));
    SAME(before - available(), 0);
}

// Not simulated: what a program gets by such a name and version is still the right form.
CUresult cuGraphKernelNodeGetParams(void), cuGraphKernelNodeSetParams(void), cuGraphExecKernelNodeSetParams(void);

// The forms of before, which the runtime asks for by their versions.
static void old_forms(void) {
    static const struct {
        const char *name;
        int version;
        void *want;
    } forms[] = {
        {"cuDevicePrimaryCtxRelease", 7000, (void *)cuDevicePrimaryCtxRelease},
        {"cuDevicePrimaryCtxReset", 7000, (void *)cuDevicePrimaryCtxReset},
        {"cuIpcOpenMemHandle", 4010, (void *)cuIpcOpenMemHandle},
        {"cuStreamBeginCapture", 10000, (void *)cuStreamBeginCapture},
        {"cuStreamGetCaptureInfo", 10010, (void *)cuStreamGetCaptureInfo},
        {"cuGraphInstantiate", 10000, (void *)cuGraphInstantiate},
        {"cuGraphKernelNodeGetParams", 10000, (void *)cuGraphKernelNodeGetParams},
        {"cuGraphKernelNodeSetParams", 10000, (void *)cuGraphKernelNodeSetParams},
        {"cuGraphExecKernelNodeSetParams", 10010, (void *)cuGraphExecKernelNodeSetParams},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        void *got = NULL;
        OK(cuGetProcAddress(forms[i].name, &got, forms[i].version, 0));
        TRUE(got == forms[i].want);
    }
    CUstream s;
    CUgraph g;
    CUgraphExec exec;
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    CUfunction f = kernel("simgpu-module 1\nkernel k 1000\n", "k");
    OK(cuStreamCreate(&s, 0));
    OK(cuStreamBeginCapture(s));
    launch(f, s);
    OK(cuStreamGetCaptureInfo(s, &status, &id));
    SAME(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    TRUE(id != 0);
    OK(cuStreamEndCapture(s, &g));
    OK(cuGraphInstantiate(&exec, g, NULL, NULL, 0));
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(g));
    OK(cuStreamDestroy_v2(s));
}

// What PyTorch looks for before it allocates.
static void written_values(void) {
    CUdeviceptr p;
    unsigned got = 0;
    OK(cuMemAlloc_v2(&p, 8));
    OK(cuStreamWriteValue32(NULL, p, 7, 0));
    OK(cuStreamWriteValue32_v2(NULL, p + 4, 8, 1));
    OK(cuMemcpyDtoH_v2(&got, p, 4));
    SAME(got, 7);
    OK(cuMemcpyDtoH_v2(&got, p + 4, 4));
    SAME(got, 8);
    SAME(cuStreamWriteValue32(NULL, p, 7, 2), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(p));
}

void runtime(void) {
    OK(cuInit(0));
    TRUE(!table("00000000000000000000000000000000"));
    void **interface = table("6bd5fb6c5bf4e74a8987d93912fd9df9");
    void **storage = table("c693336e1121df11a8c368f355d89593");
    TRUE(interface && storage);
    SAME((size_t)interface[0], 10 * sizeof(void *));
    contexts_of_the_runtime(interface, storage);
    modules_of_the_runtime(interface);
    libraries_of_the_runtime();
    old_forms();
    written_values();
}
