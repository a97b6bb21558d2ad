// SPDX-License-Identifier: Apache-2.0
//
// The cases of unit/cuda that are about memory.
#define _GNU_SOURCE
#include "case.h"

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void memory(void) {
    start();
    size_t all = available(), pitch, size, i;
    CUdeviceptr a, b, base;
    char out[5000], in[5000];
    SAME(cuMemAlloc_v2(&a, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc_v2(&a, 5000));
    SAME(all - available(), 5120);  // rounded up to 512
    for (i = 0; i < sizeof in; i++) in[i] = (char)(i * 7);
    OK(cuMemcpyHtoD_v2(a, in, sizeof in));
    OK(cuMemcpyDtoH_v2(out, a, sizeof out));
    TRUE(memcmp(in, out, sizeof in) == 0);
    OK(cuMemsetD32_v2(a + 4, 0x01020304, 2));
    OK(cuMemcpyDtoH_v2(out, a, 16));
    TRUE(memcmp(out + 4, "\4\3\2\1\4\3\2\1", 8) == 0 && out[3] == in[3] && out[12] == in[12]);
    OK(cuMemGetAddressRange_v2(&base, &size, a + 100));
    SAME(base, a);
    SAME(size, 5120);
    SAME(cuMemcpyHtoD_v2(a + 5000, in, 200), CUDA_ERROR_INVALID_VALUE);
    SAME(cuMemcpyHtoD_v2((CUdeviceptr)(uintptr_t)out, in, 1), CUDA_ERROR_INVALID_VALUE);
    SAME(cuMemFree_v2(a + 512), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(a));
    SAME(cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
    SAME(available(), all);
    OK(cuMemAlloc_v2(&b, 5000));
    OK(cuMemsetD8_v2(b + 4999, 1, 1));
    OK(cuMemcpyDtoH_v2(out, b, sizeof out));
    for (i = 0; i < 4999; i++) SAME(out[i], 0);  // nothing of the last owner
    OK(cuMemFree_v2(b));
    OK(cuMemAllocPitch_v2(&a, &pitch, 1000, 10, 4));
    SAME(pitch, 1024);
    SAME(all - available(), 10240);
    OK(cuMemFree_v2(a));
    OK(cuMemAllocManaged(&a, MIB, CU_MEM_ATTACH_GLOBAL));
    ((char *)(uintptr_t)a)[12345] = 7;  // the host may touch it
    OK(cuMemcpyDtoH_v2(out, a + 12345, 1));
    SAME(out[0], 7);
    SAME(all - available(), MIB);
    OK(cuMemFree_v2(a));
    SAME(cuMemAlloc_v2(&a, all + 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&a, all));
    SAME(available(), 0);
    SAME(cuMemAlloc_v2(&b, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree_v2(a));
}

static void *grab(void *got) {
    CUdeviceptr at;
    OK(cuCtxSetCurrent(ctx));
    while (cuMemAlloc_v2(&at, 64 * MIB) == CUDA_SUCCESS) ++*(size_t *)got;
    return NULL;
}

void race(void) {
    start();
    size_t all = available(), got[8] = {0}, sum = 0;
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, grab, &got[i]);
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        sum += got[i];
    }
    SAME(sum, all / (64 * MIB));
    SAME(available(), all % (64 * MIB));
}

void pools(void) {
    start();
    size_t all = available();
    CUmemoryPool pool;
    CUdeviceptr a, b;
    cuuint64_t used;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                            .maxSize = 4 * MIB};
    OK(cuMemAllocAsync(&a, MIB, NULL));
    SAME(all - available(), MIB);
    OK(cuMemFreeAsync(a, NULL));
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&a, 3 * MIB, pool, NULL));
    SAME(cuMemAllocFromPoolAsync(&b, 2 * MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    SAME(used, 3 * MIB);
    OK(cuMemPoolDestroy(pool));
    SAME(all - available(), 3 * MIB);  // the pool lives until its memory is freed
    OK(cuMemFree_v2(a));
    SAME(available(), all);
}

void vmm(void) {
    start();
    size_t all = available(), granule;
    CUmemGenericAllocationHandle h, again;
    CUdeviceptr range;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    char out[4] = "";
    OK(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemAddressReserve(&range, 4 * granule, 0, 0, 0));
    SAME(available(), all);
    SAME(cuMemCreate(&h, granule + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemCreate(&h, 2 * granule, &prop, 0));
    SAME(all - available(), 2 * granule);
    OK(cuMemMap(range, granule, 0, h, 0));
    SAME(cuMemMap(range, granule, granule, h, 0), CUDA_ERROR_INVALID_VALUE);  // occupied
    SAME(cuMemMap(range + granule, 2 * granule, granule, h, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(range + granule, granule, granule, h, 0));
    OK(cuMemSetAccess(range, 2 * granule, &access, 1));
    OK(cuMemcpyHtoD_v2(range + granule - 2, "abcd", 4));  // over the seam
    OK(cuMemcpyDtoH_v2(out, range + granule - 2, 4));
    SAME(cuMemcpyDtoH_v2(out, range + 2 * granule - 2, 4), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(range + 5)));
    SAME(again, h);
    OK(cuMemRelease(again));
    OK(cuMemRelease(h));
    SAME(all - available(), 2 * granule);  // still mapped
    SAME(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE);
    SAME(cuMemAddressFree(range, 4 * granule), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(range, granule));
    SAME(all - available(), 2 * granule);
    OK(cuMemUnmap(range + granule, granule));
    SAME(available(), all);
    OK(cuMemAddressFree(range, 4 * granule));
    SAME(cuMemFree_v2(range), CUDA_ERROR_INVALID_VALUE);
}

void arrays(void) {
    start();
    size_t all = available();
    CUarray a, level;
    CUmipmappedArray m;
    CUDA_ARRAY3D_DESCRIPTOR d = {256, 256, 16, CU_AD_FORMAT_FLOAT, 4, 0};
    CUDA_ARRAY_MEMORY_REQUIREMENTS need;
    OK(cuArray3DCreate_v2(&a, &d));
    SAME(all - available(), 16 * MIB);
    SAME(cuArrayGetMemoryRequirements(&need, a, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuArrayDestroy(a));
    d.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
    OK(cuArray3DCreate_v2(&a, &d));
    OK(cuArrayGetMemoryRequirements(&need, a, 0));
    SAME(need.size, 16 * MIB);
    SAME(available(), all);
    OK(cuArrayDestroy(a));
    d.Flags = 0;
    d.Depth = 0;
    OK(cuMipmappedArrayCreate(&m, &d, 3));
    SAME(all - available(), MIB + MIB / 4 + MIB / 16);
    OK(cuMipmappedArrayGetLevel(&level, m, 1));
    SAME(cuArrayDestroy(level), CUDA_ERROR_INVALID_HANDLE);
    OK(cuMipmappedArrayDestroy(m));
    SAME(available(), all);
}

static CUresult map(CUarray array, CUmemGenericAllocationHandle h, unsigned x, unsigned width, size_t offset) {
    CUarrayMapInfo info = {.resource = {.array = array},
                           .subresource = {.sparseLevel = {.offsetX = x, .extentWidth = width, .extentHeight = 64, .extentDepth = 1}},
                           .memOperationType = h ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP,
                           .memHandle = {h},
                           .offset = offset,
                           .deviceBitMask = 1};
    return cuMemMapArrayAsync(&info, 1, NULL);
}

void sparse(void) {
    start();
    size_t all = available();
    CUarray a;
    CUmipmappedArray m;
    CUDA_ARRAY3D_DESCRIPTOR d = {200, 64, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE};
    CUDA_ARRAY_SPARSE_PROPERTIES p;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle plain, h, other;
    OK(cuMemCreate(&plain, 2 * MIB, &prop, 0));
    prop.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    OK(cuMemCreate(&h, 2 * MIB, &prop, 0));
    OK(cuMemCreate(&other, 2 * MIB, &prop, 0));
    OK(cuArray3DCreate_v2(&a, &d));
    SAME(all - available(), 6 * MIB);  // the array has none of its own
    OK(cuArrayGetSparseProperties(&p, a));
    SAME(p.tileExtent.width, 64);
    SAME(p.tileExtent.height, 64);
    SAME(map(a, plain, 0, 64, 0), CUDA_ERROR_INVALID_VALUE);  // no tile pool
    SAME(map(a, h, 8, 64, 0), CUDA_ERROR_INVALID_VALUE);
    SAME(map(a, h, 0, 65, 0), CUDA_ERROR_INVALID_VALUE);
    SAME(map(a, h, 192, 128, 0), CUDA_ERROR_INVALID_VALUE);
    SAME(map(a, h, 0, 64, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(map(a, h, 0, 64, 2 * MIB - 65536));
    OK(map(a, h, 128, 72, 0));  // ends with the array
    OK(cuMemRelease(h));
    SAME(all - available(), 6 * MIB);
    OK(map(a, other, 0, 64, 0));
    SAME(all - available(), 6 * MIB);
    OK(map(a, 0, 64, 136, 0));  // the last tile of the first
    SAME(all - available(), 4 * MIB);
    OK(cuMemRelease(other));
    OK(cuArrayDestroy(a));
    SAME(all - available(), 2 * MIB);
    SAME(cuArrayDestroy(a), CUDA_ERROR_INVALID_HANDLE);
    d.Width = 256;
    OK(cuMipmappedArrayCreate(&m, &d, 4));
    OK(cuMipmappedArrayGetSparseProperties(&p, m));
    SAME(p.miptailFirstLevel, 1);  // 128 × 32
    SAME(p.miptailSize, 131072);
    OK(cuMipmappedArrayDestroy(m));
    OK(cuMemRelease(plain));
    SAME(available(), all);
}

void ipc(void) {
    int pipes[2];
    CUipcMemHandle handle;
    CUdeviceptr at;
    size_t size;
    SAME(pipe(pipes), 0);
    pid_t owner = fork();
    if (!owner) {
        start();
        OK(cuMemAlloc_v2(&at, 10 * MIB));
        OK(cuIpcGetMemHandle(&handle, at));
        SAME(cuIpcOpenMemHandle_v2(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
             CUDA_ERROR_INVALID_CONTEXT);
        SAME(write(pipes[1], &handle, sizeof handle), sizeof handle);
        pause();
    }
    SAME(read(pipes[0], &handle, sizeof handle), sizeof handle);
    start();
    size_t all = available();
    OK(cuIpcOpenMemHandle_v2(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    SAME(available(), all);  // the owner pays
    OK(cuMemGetAddressRange_v2(NULL, &size, at));
    SAME(size, 10 * MIB);
    SAME(cuMemFree_v2(at), CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcCloseMemHandle(at));
    kill(owner, SIGKILL);
    waitpid(owner, NULL, 0);
    SAME(cuIpcOpenMemHandle_v2(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
         CUDA_ERROR_INVALID_HANDLE);
}

// Memory of a captured graph: an address at once, memory from the launch on, kept
// for the next launch until it is trimmed.
void graph_memory(void) {
    start();
    CUstream s;
    CUgraph g;
    CUgraphExec exec;
    CUdeviceptr kept, passing;
    cuuint64_t used, reserved;
    size_t before = available();
    OK(cuStreamCreate(&s, 0));
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&kept, 4 * MIB, s));
    OK(cuMemAllocAsync(&passing, 2 * MIB, s));
    OK(cuMemFreeAsync(passing, s));
    OK(cuStreamEndCapture(s, &g));
    OK(cuGraphInstantiateWithFlags(&exec, g, 0));
    OK(cuGraphDestroy(g));
    SAME(before - available(), 0);
    SAME(cuMemFree_v2(kept), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphUpload(exec, s));
    SAME(before - available(), 6 * MIB);
    OK(cuGraphLaunch(exec, s));
    SAME(cuGraphLaunch(exec, s), CUDA_ERROR_INVALID_VALUE);  // not freed since
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used));
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved));
    SAME(used, 4 * MIB);
    SAME(reserved, 6 * MIB);
    OK(cuDeviceGraphMemTrim(0));
    SAME(before - available(), 4 * MIB);
    OK(cuGraphExecDestroy(exec));
    OK(cuMemFreeAsync(kept, s));
    OK(cuDeviceGraphMemTrim(0));
    SAME(before - available(), 0);
}
