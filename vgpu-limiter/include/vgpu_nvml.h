// SPDX-License-Identifier: Apache-2.0
//
// The part of NVML's public ABI (64-bit Linux) that the library touches, under
// its own names (see vgpu_cuda.h; the same test compares it with nvml.h).

#ifndef VGPU_NVML_H
#define VGPU_NVML_H

#include <stdint.h>

typedef int nv_result;
typedef struct nv_device_opaque *nv_device;

enum {
    NV_OK = 0,
    NV_INVALID_ARGUMENT = 2,
    NV_NO_PERMISSION = 4,
    NV_NOT_FOUND = 6,
    NV_INSUFFICIENT_SIZE = 7,
    NV_FUNCTION_NOT_FOUND = 13,
    NV_MEMORY = 20,
    NV_UUID_CHARS = 96,
    NV_PROCESS_COMPUTE = 0,
    NV_PROCESS_ALL = 3,
};
#define NV_NO_INSTANCE 0xffffffffu
#define NV_VALUE_NOT_AVAILABLE UINT64_MAX

struct nv_memory {
    uint64_t total, free, used;
};

struct nv_memory_v2 {
    uint32_t version;
    uint64_t total, reserved, free, used;
};

struct nv_process_v1 {
    uint32_t pid;
    uint64_t used;
};

struct nv_process_v2 {
    uint32_t pid;
    uint64_t used;
    uint32_t gpu_instance, compute_instance;
};

struct nv_sample {
    uint32_t pid;
    unsigned long long time;
    uint32_t percent[4];
};

struct nv_busy {
    unsigned long long time;
    uint32_t pid, percent[6];
};

struct nv_busy_list {
    uint32_t version, count;
    unsigned long long since;
    struct nv_busy *processes;
};

struct nv_process_detail {
    uint32_t pid;
    uint64_t used;
    uint32_t gpu_instance, compute_instance;
    uint64_t used_protected;
};

struct nv_process_detail_list {
    uint32_t version, mode, count;
    struct nv_process_detail *processes;
};

#endif
