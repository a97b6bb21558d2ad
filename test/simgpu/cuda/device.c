// SPDX-License-Identifier: Apache-2.0
//
// device.c: devices and their attributes.
//
// Invariant: an attribute that the simulation does not know is 0, which by the
// API means "not supported"; only numbers outside the enum are refused.
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <string.h>

CUresult need_device(CUdevice dev, struct ordinal **o) {
    INITIALIZED;
    if (dev < 0 || dev >= ordinal_count) return CUDA_ERROR_INVALID_DEVICE;
    *o = &ordinals[dev];
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    NEED(count);
    INITIALIZED;
    *count = ordinal_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    struct ordinal *o;
    NEED(device);
    CHECK(need_device(ordinal, &o));
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev) {
    struct ordinal *o;
    NEED(name && len > 0);
    CHECK(need_device(dev, &o));
    const struct sim_profile *p =
        o->gi == SIM_WHOLE_GPU ? NULL : sim_profile_by_id(o->m, o->d->gi[o->gi].profile);
    snprintf(name, (size_t)len, "%s%s%s", o->m->name, p ? " " : "", p ? p->name : "");
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev) {
    struct ordinal *o;
    NEED(uuid);
    CHECK(need_device(dev, &o));
    memcpy(uuid->bytes, o->d->uuid, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

// The second version gives the MIG instance's UUID where the first gives the GPU's.
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev) {
    struct ordinal *o;
    CHECK(cuDeviceGetUuid(uuid, dev));
    CHECK(need_device(dev, &o));
    if (o->gi != SIM_WHOLE_GPU)
        memcpy(uuid->bytes, o->d->gi[o->gi].ci[o->ci].uuid, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice dev) {
    (void)luid, (void)mask, (void)dev;
    return CUDA_ERROR_NOT_SUPPORTED;  // Windows only
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    struct ordinal *o;
    NEED(bytes);
    CHECK(need_device(dev, &o));
    *bytes = sim_capacity(cu, o->dev, o->gi);
    return CUDA_SUCCESS;
}

static unsigned multiprocessors(const struct ordinal *o) {
    if (o->gi == SIM_WHOLE_GPU) return me->work[o->dev].sms ? me->work[o->dev].sms : o->m->sms;
    const struct sim_profile *p = sim_profile_by_id(o->m, o->d->gi[o->gi].profile);
    return p ? p->sms * o->d->gi[o->gi].ci[o->ci].slices / p->slices : 0;
}

static unsigned attribute(const struct ordinal *o, CUdevice_attribute a) {
    const struct sim_model *m = o->m;
    switch (a) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return m->shared_per_block;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return m->shared_per_sm;
        case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
        case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return 2147483647;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return m->sm_clock_mhz * 1000;
        case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return m->mem_clock_mhz * 1000;
        case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return m->bus_bits;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return m->l2_bytes;
        case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
        case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT: return 512;
        case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT: return 32;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return multiprocessors(o);
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return m->threads_per_sm;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return m->blocks_per_sm;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: return atomic_load(&o->d->compute_mode);
        case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 3;
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return o->d->bus;
        case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: return o->d->domain;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return m->major;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return m->minor;
        case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
            return m->major == 7 ? 32 : m->minor == 9 ? 64 : 2;
        case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: return m->major >= 9;
        case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: return o->gi == SIM_WHOLE_GPU && sim_multicast(cu, o->dev);
        case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
            return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: return o->d->place.numa_node;
        case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
        case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
        case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
        case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
        default: return 0;
    }
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attrib, CUdevice dev) {
    struct ordinal *o;
    NEED(value && (int)attrib > 0 && (int)attrib < 1000);
    CHECK(need_device(dev, &o));
    *value = (int)attribute(o, attrib);
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev) {
    struct ordinal *o;
    NEED(major && minor);
    CHECK(need_device(dev, &o));
    *major = (int)o->m->major;
    *minor = (int)o->m->minor;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev) {
    struct ordinal *o;
    NEED(id && len > 0);
    CHECK(need_device(dev, &o));
    snprintf(id, (size_t)len, "%04x:%02x:00.0", o->d->domain, o->d->bus & 0xff);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *id) {
    unsigned domain = 0, bus, slot;
    NEED(dev && id);
    INITIALIZED;
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3 && sscanf(id, "%x:%x", &bus, &slot) != 2)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < ordinal_count; i++)
        if (ordinals[i].d->domain == domain && ordinals[i].d->bus == bus) {
            *dev = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer) {
    struct ordinal *a, *b;
    NEED(can);
    CHECK(need_device(dev, &a));
    CHECK(need_device(peer, &b));
    *can = dev != peer && a->gi == SIM_WHOLE_GPU && b->gi == SIM_WHOLE_GPU;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice src,
                                 CUdevice dst) {
    struct ordinal *a, *b;
    NEED(value && attrib >= CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK && attrib <= CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED);
    CHECK(need_device(src, &a));
    CHECK(need_device(dst, &b));
    if (src == dst) return CUDA_ERROR_INVALID_DEVICE;
    CHECK(cuDeviceCanAccessPeer(value, src, dst));
    bool linked = *value && sim_linked(cu, a->dev, b->dev);
    if (attrib == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK) *value = !linked;
    if (attrib == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED) *value = linked;
    return CUDA_SUCCESS;
}
