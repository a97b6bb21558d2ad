// SPDX-License-Identifier: Apache-2.0
//
// links: what a communication library asks CUDA and NVML about the links between devices,
// and what it makes by them, a line for each answer. With "lookup" CUDA's functions come from
// cuGetProcAddress. The other arguments are PCI addresses, of devices that need not be there.

#include "cuda.h"
#include "nvml.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GRANULE ((size_t)2 << 20)
#define MOST 16

static void *cuda_library, *nvml_library;
static bool looks_up;

static void *checked(void *found, const char *name) {
    if (found == NULL) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return found;
}

static void *cuda(const char *symbol) {
    char name[64];
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    if (!looks_up)
        return checked(dlsym(cuda_library, symbol), symbol);
    snprintf(name, sizeof name, "%s", symbol);
    char *version = strstr(name, "_v");
    if (version != NULL)
        *version = 0;
    CUresult (*look)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) =
        dlsym(cuda_library, "cuGetProcAddress_v2");
    return look(name, &found, 13000, 0, &status) == CUDA_SUCCESS ? checked(found, name) : checked(NULL, name);
}

#define CU(name) ((__typeof__(name) *)cuda(#name))
#define NV(name) ((__typeof__(name) *)checked(dlsym(nvml_library, #name), #name))

// Result of a call, with numbers that say which and numbers that it gave.
#define SAY(what, format, ...) printf("%s " format "\n", what, __VA_ARGS__)

static size_t used(void) {
    size_t left = 0, all = 0;
    CU(cuMemGetInfo_v2)(&left, &all);
    return all - left;
}

static void pairs(int count) {
    CUcontext context[MOST];
    for (int i = 0; i < count; i++) {
        char address[32] = "";
        for (int a = 1; a < CU_DEVICE_ATTRIBUTE_MAX; a++) {
            int value = -1, result = CU(cuDeviceGetAttribute)(&value, (CUdevice_attribute)a, i);
            SAY("attribute", "%d %d: %d %d", i, a, result, value);
        }
        int result = CU(cuDeviceGetPCIBusId)(address, sizeof address, i);
        SAY("address", "%d: %d %s", i, result, address);
        SAY("context", "%d: %d", i, CU(cuDevicePrimaryCtxRetain)(&context[i], i));
    }
    for (int a = 0; a < count; a++)
        for (int b = 0; b < count; b++) {
            int value = -1, result = CU(cuDeviceCanAccessPeer)(&value, a, b);
            SAY("can_access", "%d %d: %d %d", a, b, result, value);
            for (int p = 0; p < 6; p++) {
                value = -1;
                result = CU(cuDeviceGetP2PAttribute)(&value, (CUdevice_P2PAttribute)p, a, b);
                SAY("p2p", "%d %d %d: %d %d", a, b, p, result, value);
            }
            CU(cuCtxSetCurrent)(context[a]);
            for (int i = 0; i < 2; i++)
                SAY("enable", "%d %d: %d", a, b, CU(cuCtxEnablePeerAccess)(context[b], 0));
            for (int i = 0; a == 0 && i < 2; i++)
                SAY("disable", "%d %d: %d", a, b, CU(cuCtxDisablePeerAccess)(context[b]));
        }
    CU(cuCtxSetCurrent)(context[0]);
}

static CUmemAllocationProp memory_of(CUdevice device, unsigned types) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = (CUmemAllocationHandleType)types,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
}

// Memory of each device under one name, in the order in which NCCL does it.
static void multicast(int count, unsigned types) {
    CUmulticastObjectProp prop = {.numDevices = (unsigned)count, .size = GRANULE, .handleTypes = types};
    CUmemGenericAllocationHandle object = 0, part[MOST] = {0}, taken = 0;
    CUmemAllocationProp found = {0};
    CUdeviceptr range = 0, mapped = 0;
    size_t granularity = 0;
    int fd = -1, result = CU(cuMulticastGetGranularity)(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    SAY("granularity", "%d %zu", result, granularity);
    SAY("object", "%d", CU(cuMulticastCreate)(&object, &prop));
    result = CU(cuMemExportToShareableHandle)(&fd, object, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    SAY("export_object", "%d", result);
    bool added = true;
    for (int i = 0; i < count; i++) {
        result = CU(cuMulticastAddDevice)(object, i);
        SAY("add", "%d: %d", i, result);
        added &= result == 0;
    }
    for (int i = 0; added && i < count; i++) { // a binding waits for all of them
        CUmemAllocationProp memory = memory_of(i, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        SAY("create", "%d: %d", i, CU(cuMemCreate)(&part[i], GRANULE, &memory, 0));
        SAY("bind", "%d: %d", i, CU(cuMulticastBindMem)(object, 0, part[i], 0, GRANULE, 0));
    }
    result = CU(cuMemGetAllocationPropertiesFromHandle)(&found, object);
    SAY("properties", "%d %d", result, found.location.id);
    CU(cuMemAddressReserve)(&range, GRANULE, 0, 0, 0);
    CU(cuMemAddressReserve)(&mapped, GRANULE, 0, 0, 0);
    SAY("map_object", "%d", CU(cuMemMap)(range, GRANULE, 0, object, 0));
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    SAY("access", "%d", CU(cuMemSetAccess)(range, GRANULE, &access, 1));
    SAY("used", "%zu", used());
    if (added) {
        SAY("map", "%d", CU(cuMemMap)(mapped, GRANULE, 0, part[0], 0));
        SAY("unbind", "%d", CU(cuMulticastUnbind)(object, 0, 0, GRANULE));
        SAY("bind_address", "%d", CU(cuMulticastBindAddr)(object, 0, mapped, GRANULE, 0));
        SAY("unmap", "%d", CU(cuMemUnmap)(mapped, GRANULE));
    }
    result = CU(cuMemImportFromShareableHandle)(&taken, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    SAY("import_object", "%d", result);
    SAY("release_import", "%d", CU(cuMemRelease)(taken));
    for (int i = 0; i < count; i++)
        SAY("release", "%d: %d", i, CU(cuMemRelease)(part[i]));
    SAY("used", "%zu", used()); // what is bound stays
    for (int i = 0; i < count; i++)
        SAY("unbind", "%d: %d", i, CU(cuMulticastUnbind)(object, i, 0, GRANULE));
    SAY("used", "%zu", used());
    SAY("release_object", "%d", CU(cuMemRelease)(object));
    SAY("unmap_object", "%d", CU(cuMemUnmap)(range, GRANULE));
    close(fd);
}

static void shared(int count) {
    for (int i = 0; i < count; i++) {
        CUmemAllocationProp memory = memory_of(i, CU_MEM_HANDLE_TYPE_FABRIC);
        CUmemGenericAllocationHandle handle = 0, taken = 0;
        CUmemFabricHandle fabric = {{0}};
        CUipcMemHandle ipc;
        CUdeviceptr plain = 0, opened = 0;
        int dma = -1;
        SAY("create_fabric", "%d: %d", i, CU(cuMemCreate)(&handle, GRANULE, &memory, 0));
        SAY("export_fabric", "%d: %d", i, CU(cuMemExportToShareableHandle)(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
        SAY("import_fabric", "%d: %d", i, CU(cuMemImportFromShareableHandle)(&taken, &fabric, CU_MEM_HANDLE_TYPE_FABRIC));
        SAY("used", "%zu", used());
        SAY("release_import", "%d: %d", i, CU(cuMemRelease)(taken));
        SAY("used", "%zu", used());
        SAY("release", "%d: %d", i, CU(cuMemRelease)(handle));
        SAY("alloc", "%d: %d", i, CU(cuMemAlloc_v2)(&plain, GRANULE));
        SAY("ipc_get", "%d: %d", i, CU(cuIpcGetMemHandle)(&ipc, plain));
        SAY("ipc_open", "%d: %d", i, CU(cuIpcOpenMemHandle_v2)(&opened, ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        SAY("dma_buf", "%d: %d", i, CU(cuMemGetHandleForAddressRange)(&dma, plain, GRANULE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
        SAY("free", "%d: %d", i, CU(cuMemFree_v2)(plain));
        SAY("used", "%zu", used());
    }
}

static unsigned index_of(nvmlDevice_t device) {
    unsigned index = 99;
    NV(nvmlDeviceGetIndex)(device, &index);
    return index;
}

static void links(unsigned i, nvmlDevice_t device) {
    for (unsigned link = 0; link < NVML_NVLINK_MAX_LINKS; link++) {
        nvmlEnableState_t active = 99;
        nvmlPciInfo_t pci = {.busId = ""}, older = {.busIdLegacy = ""};
        nvmlIntNvLinkDeviceType_t type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
        nvmlFieldValue_t field = {.fieldId = NVML_FI_DEV_NVLINK_GET_STATE, .scopeId = link};
        unsigned version = 99, has = 99;
        int result = NV(nvmlDeviceGetNvLinkState)(device, link, &active);
        SAY("link_state", "%u %u: %d %d", i, link, result, active);
        result = NV(nvmlDeviceGetFieldValues)(device, 1, &field);
        SAY("link_field", "%u %u: %d %d %u", i, link, result, field.nvmlReturn, field.value.uiVal);
        result = NV(nvmlDeviceGetNvLinkVersion)(device, link, &version);
        SAY("link_version", "%u %u: %d %u", i, link, result, version);
        result = NV(nvmlDeviceGetNvLinkRemotePciInfo_v2)(device, link, &pci);
        SAY("link_remote", "%u %u: %d %s %x", i, link, result, pci.busId, pci.pciDeviceId);
        result = NV(nvmlDeviceGetNvLinkRemotePciInfo)(device, link, &older);
        SAY("link_remote_v1", "%u %u: %d %s", i, link, result, older.busIdLegacy);
        result = NV(nvmlDeviceGetNvLinkRemoteDeviceType)(device, link, &type);
        SAY("link_type", "%u %u: %d %d", i, link, result, type);
        for (unsigned cap = 0; cap < NVML_NVLINK_CAP_COUNT; cap++) {
            result = NV(nvmlDeviceGetNvLinkCapability)(device, link, (nvmlNvLinkCapability_t)cap, &has);
            SAY("link_capability", "%u %u %u: %d %u", i, link, cap, result, has);
        }
    }
}

static void say_fabric(const char *what, unsigned i, int result, const void *info, size_t size) {
    printf("%s %u: %d ", what, i, result);
    for (size_t b = 0; result == 0 && b < size; b++)
        printf("%02x", ((const unsigned char *)info)[b]);
    printf("\n");
}

static void fabric(unsigned i, nvmlDevice_t device) {
    nvmlGpuFabricInfo_t plain = {.state = 0};
    nvmlGpuFabricInfo_v2_t second = {.version = nvmlGpuFabricInfo_v2};
    nvmlGpuFabricInfo_v3_t third = {.version = nvmlGpuFabricInfo_v3};
    say_fabric("fabric", i, NV(nvmlDeviceGetGpuFabricInfo)(device, &plain), &plain, sizeof plain);
    say_fabric("fabric_v2", i, NV(nvmlDeviceGetGpuFabricInfoV)(device, (void *)&second), &second, sizeof second);
    say_fabric("fabric_v3", i, NV(nvmlDeviceGetGpuFabricInfoV)(device, &third), &third, sizeof third);
}

static void places(unsigned i, nvmlDevice_t device) {
    static const nvmlGpuTopologyLevel_t levels[] = {NVML_TOPOLOGY_INTERNAL, NVML_TOPOLOGY_SINGLE, NVML_TOPOLOGY_MULTIPLE,
                                                    NVML_TOPOLOGY_HOSTBRIDGE, NVML_TOPOLOGY_NODE, NVML_TOPOLOGY_SYSTEM};
    for (unsigned level = 0; level < sizeof levels / sizeof *levels; level++) {
        nvmlDevice_t near[MOST];
        unsigned n = 0;
        int result = NV(nvmlDeviceGetTopologyNearestGpus)(device, levels[level], &n, NULL);
        printf("nearest %u %d: %d %u,", i, levels[level], result, n);
        result = n > 0 ? NV(nvmlDeviceGetTopologyNearestGpus)(device, levels[level], &n, near) : 0;
        for (unsigned k = 0; result == 0 && k < n; k++)
            printf(" %u", index_of(near[k]));
        printf(" %d\n", result);
    }
    unsigned node = 99;
    int result = NV(nvmlDeviceGetNumaNodeId)(device, &node);
    SAY("numa_id", "%u: %d %u", i, result, node);
    for (unsigned scope = 0; scope < 2; scope++) {
        unsigned long cpus[4] = {0}, nodes[4] = {0};
        result = NV(nvmlDeviceGetCpuAffinityWithinScope)(device, 4, cpus, scope);
        SAY("cpus", "%u %u: %d %lx %lx", i, scope, result, cpus[0], cpus[1]);
        result = NV(nvmlDeviceGetMemoryAffinity)(device, 4, nodes, scope);
        SAY("nodes", "%u %u: %d %lx", i, scope, result, nodes[0]);
    }
    unsigned long cpus[4] = {0};
    result = NV(nvmlDeviceGetCpuAffinity)(device, 4, cpus);
    SAY("cpus", "%u: %d %lx %lx", i, result, cpus[0], cpus[1]);
}

int main(int argc, char **argv) {
    int count = 0;
    unsigned shown = 0;
    looks_up = argc > 1 && strcmp(argv[1], "lookup") == 0;
    cuda_library = checked(dlopen("libcuda.so.1", RTLD_LAZY), "libcuda.so.1");
    nvml_library = checked(dlopen("libnvidia-ml.so.1", RTLD_LAZY), "libnvidia-ml.so.1");
    SAY("init", "%d %d", CU(cuInit)(0), NV(nvmlInit_v2)());
    int result = CU(cuDeviceGetCount)(&count);
    SAY("count", "%d %d", result, count);
    pairs(count);
    multicast(count, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    shared(count);
    result = NV(nvmlDeviceGetCount_v2)(&shown);
    SAY("shown", "%d %u", result, shown);
    for (unsigned i = 0; i < shown; i++) {
        nvmlDevice_t device, other;
        nvmlPciInfo_t pci = {.busId = ""};
        result = NV(nvmlDeviceGetHandleByIndex_v2)(i, &device);
        SAY("device", "%u: %d %u", i, result, index_of(device));
        result = NV(nvmlDeviceGetPciInfo_v3)(device, &pci);
        SAY("pci", "%u: %d %s", i, result, pci.busId);
        for (unsigned j = 0; j < shown; j++) {
            nvmlGpuTopologyLevel_t level = 99;
            NV(nvmlDeviceGetHandleByIndex_v2)(j, &other);
            result = NV(nvmlDeviceGetTopologyCommonAncestor)(device, other, &level);
            SAY("ancestor", "%u %u: %d %d", i, j, result, level);
            for (unsigned cap = 0; cap <= NVML_P2P_CAPS_INDEX_UNKNOWN; cap++) {
                nvmlGpuP2PStatus_t status = NVML_P2P_STATUS_UNKNOWN;
                result = NV(nvmlDeviceGetP2PStatus)(device, other, (nvmlGpuP2PCapsIndex_t)cap, &status);
                SAY("p2p_status", "%u %u %u: %d %d", i, j, cap, result, status);
            }
        }
        links(i, device);
        fabric(i, device);
        places(i, device);
    }
    for (int i = looks_up ? 2 : 1; i < argc; i++) {
        nvmlDevice_t device;
        result = NV(nvmlDeviceGetHandleByPciBusId_v2)(argv[i], &device);
        SAY("by_address", "%s: %d %u", argv[i], result, result == 0 ? index_of(device) : 99);
    }
    return 0;
}
