// SPDX-License-Identifier: Apache-2.0
//
// The cases of unit/cuda that need devices with links: eight H100 at switches, two at
// those of a fabric of several machines, two A100 with a bridge.
#include "case.h"

#include <pthread.h>
#include <stdatomic.h>

#define GRANULE (2 * MIB)

static int p2p(CUdevice_P2PAttribute attribute, CUdevice a, CUdevice b) {
    int value = -1;
    OK(cuDeviceGetP2PAttribute(&value, attribute, a, b));
    return value;
}

static CUmemAllocationProp memory_of(CUdevice device, CUmemAllocationHandleType types) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = types,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}

static CUmemGenericAllocationHandle object, part[2];
static atomic_int complete;

static void *bind_first(void *unused) {
    OK(cuMulticastBindMem(object, 0, part[0], 0, GRANULE, 0));
    SAME(complete, 1);  // it has waited
    return unused;
}

static void multicast(void) {
    size_t all = available();
    CUmulticastObjectProp prop = {.numDevices = 2, .size = 2 * GRANULE, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    CUmemAllocationProp props[2] = {memory_of(0, 0), memory_of(1, 0)};
    CUmemGenericAllocationHandle imported, again;
    CUdeviceptr range, mapped;
    pthread_t thread;
    int fd;
    OK(cuMulticastCreate(&object, &prop));
    for (int i = 0; i < 2; i++) OK(cuMemCreate(&part[i], GRANULE, &props[i], 0));
    OK(cuMulticastAddDevice(object, 0));
    SAME(cuMulticastAddDevice(object, 0), CUDA_ERROR_INVALID_VALUE);
    pthread_create(&thread, NULL, bind_first, NULL);
    complete = 1;
    OK(cuMulticastAddDevice(object, 1));
    pthread_join(thread, NULL);
    SAME(cuMulticastAddDevice(object, 2), CUDA_ERROR_INVALID_VALUE);  // it has all
    SAME(cuMulticastAddDevice(part[0], 0), CUDA_ERROR_INVALID_VALUE);
    SAME(cuMulticastBindMem(object, 0, object, 0, GRANULE, 0), CUDA_ERROR_INVALID_VALUE);
    SAME(cuMulticastBindMem(object, 2 * GRANULE, part[1], 0, GRANULE, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressReserve(&mapped, GRANULE, 0, 0, 0));
    OK(cuMemMap(mapped, GRANULE, 0, part[1], 0));
    OK(cuMulticastBindAddr(object, 0, mapped, GRANULE, 0));
    SAME(cuMemGetAllocationPropertiesFromHandle(&props[0], object), CUDA_ERROR_INVALID_VALUE);

    // What is bound stays as long as the object, and that as long as it is mapped.
    OK(cuMemAddressReserve(&range, 2 * GRANULE, 0, 0, 0));
    OK(cuMemMap(range, 2 * GRANULE, 0, object, 0));
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)range));
    SAME(again, object);
    OK(cuMemRelease(again));
    OK(cuMemExportToShareableHandle(&fd, object, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemRelease(object));
    OK(cuMemRelease(part[0]));
    OK(cuMemRelease(part[1]));
    OK(cuMemUnmap(mapped, GRANULE));
    SAME(all - available(), GRANULE);
    OK(cuMemUnmap(range, 2 * GRANULE));
    SAME(available(), all);

    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    props[0] = memory_of(0, 0);
    OK(cuMemCreate(&part[0], GRANULE, &props[0], 0));
    OK(cuMulticastBindMem(imported, 0, part[0], 0, GRANULE, 0));
    OK(cuMemRelease(part[0]));
    SAME(all - available(), GRANULE);
    OK(cuMulticastUnbind(imported, 0, 0, GRANULE));
    SAME(available(), all);
    OK(cuMemRelease(imported));
}

static void peers(void) {
    CUcontext other;
    int can;
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    SAME(can, 1);
    OK(cuDeviceCanAccessPeer(&can, 0, 0));
    SAME(can, 0);
    SAME(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxEnablePeerAccess(other, 0));
    SAME(cuCtxEnablePeerAccess(other, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    SAME(cuCtxEnablePeerAccess(ctx, 0), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxDisablePeerAccess(other));
    SAME(cuCtxDisablePeerAccess(other), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    OK(cuDevicePrimaryCtxRelease_v2(1));
}

static int attribute(CUdevice_attribute a) {
    int value;
    OK(cuDeviceGetAttribute(&value, a, 0));
    return value;
}

void switched(void) {
    start();
    peers();
    SAME(p2p(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 0, 7), 1);
    SAME(p2p(CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 0, 7), 0);
    SAME(attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED), 1);
    multicast();
    CUmemAllocationProp prop = memory_of(0, CU_MEM_HANDLE_TYPE_FABRIC);
    SAME(attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED), 1);
    SAME(cuMemCreate(&part[0], GRANULE, &prop, 0), CUDA_ERROR_NOT_PERMITTED);  // one machine alone
}

void bridged(void) {
    CUmulticastObjectProp prop = {.numDevices = 1, .size = GRANULE};
    start();
    peers();
    SAME(p2p(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 0, 1), 1);
    SAME(p2p(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 1, 2), 0);
    SAME(p2p(CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 1, 2), 1);
    SAME(attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED), 0);
    OK(cuMulticastCreate(&object, &prop));
    SAME(cuMulticastAddDevice(object, 0), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuMemRelease(object));
}

void fabric(void) {
    start();
    size_t all = available();
    CUmemFabricHandle handle;
    CUmemAllocationProp prop = memory_of(1, CU_MEM_HANDLE_TYPE_FABRIC), found;
    CUmemGenericAllocationHandle imported;
    OK(cuMemCreate(&part[0], GRANULE, &prop, 0));
    OK(cuMemExportToShareableHandle(&handle, part[0], CU_MEM_HANDLE_TYPE_FABRIC, 0));
    OK(cuMemImportFromShareableHandle(&imported, &handle, CU_MEM_HANDLE_TYPE_FABRIC));
    OK(cuMemGetAllocationPropertiesFromHandle(&found, imported));
    SAME(found.location.id, 1);
    OK(cuMemRelease(part[0]));
    SAME(cuMemExportToShareableHandle(&handle, imported, CU_MEM_HANDLE_TYPE_FABRIC, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(imported));
    prop.requestedHandleTypes = 0;
    OK(cuMemCreate(&part[0], GRANULE, &prop, 0));
    SAME(cuMemExportToShareableHandle(&handle, part[0], CU_MEM_HANDLE_TYPE_FABRIC, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(part[0]));
    CUmulticastObjectProp both = {.numDevices = 1, .size = GRANULE, .handleTypes = CU_MEM_HANDLE_TYPE_FABRIC};
    OK(cuMulticastCreate(&object, &both));
    OK(cuMemExportToShareableHandle(&handle, object, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    OK(cuMemImportFromShareableHandle(&imported, &handle, CU_MEM_HANDLE_TYPE_FABRIC));
    OK(cuMemRelease(imported));
    OK(cuMemRelease(object));
    SAME(available(), all);
}
