// SPDX-License-Identifier: Apache-2.0
//
// The part of the CUDA driver's public ABI (64-bit Linux) that the library
// touches, under its own names so that it can be compiled beside any cuda.h (a
// test does, and compares every value, size and offset below).
//
// Only what is read is spelled out: a longer structure of a later driver keeps
// its first fields where they are.

#ifndef VGPU_CUDA_H
#define VGPU_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_ptr;
typedef uint64_t cu_handle; // of memory made by cuMemCreate
typedef struct cu_ctx_opaque *cu_ctx;
typedef struct cu_stream_opaque *cu_stream;
typedef struct cu_event_opaque *cu_event;
typedef struct cu_array_opaque *cu_array;
typedef struct cu_mipmap_opaque *cu_mipmap;
typedef struct cu_pool_opaque *cu_pool;
typedef struct cu_graph_opaque *cu_graph;
typedef struct cu_node_opaque *cu_node;
typedef struct cu_exec_opaque *cu_exec;
typedef struct cu_function_opaque *cu_function;
typedef struct cu_module_opaque *cu_module;
typedef struct cu_library_opaque *cu_library;
typedef struct cu_green_opaque *cu_green;
typedef struct cu_external_opaque *cu_external;

enum {
    CU_OK = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_STUB_LIBRARY = 34,
    CU_NOT_READY = 600,
    CU_NOT_PERMITTED = 800,
    CU_NOT_SUPPORTED = 801,

    CU_PROC_PER_THREAD = 2, // flag of cuGetProcAddress

    CU_CAPTURE_NONE = 0,
    CU_CAPTURE_RELAXED = 2,
    CU_LOCATION_DEVICE = 1,
    CU_ALLOC_MANAGED = 2,
    CU_POOL_RESERVED = 5,
    CU_GRAPH_USED = 0,
    CU_GRAPH_RESERVED = 2,
    CU_NODE_GRAPH = 4,
    CU_NODE_ALLOC = 10,
    CU_INSTANTIATE_AUTO_FREE = 1,
    CU_INSTANTIATE_UPLOAD = 2,
    CU_RESOURCE_ARRAY = 0,
    CU_RESOURCE_MIPMAP = 1,
    CU_SUBRESOURCE_TAIL = 1,
    CU_OPERATION_MAP = 1,
    CU_SHARE_DESCRIPTOR = 1,
    CU_SHARE_FABRIC = 8,
    CU_FABRIC_BYTES = 64,
    CU_POINTER_DEVICE = 9,

    CU_ARRAY_LAYERED = 0x01,
    CU_ARRAY_CUBEMAP = 0x04,
    CU_ARRAY_SPARSE = 0x40,
    CU_ARRAY_DEFERRED = 0x80,
};

typedef struct {
    uint8_t bytes[16];
} cu_uuid;

struct cu_location {
    int type;
    int id;
};

// CUmemAllocationProp
struct cu_alloc_prop {
    int type;
    int handle_types;
    struct cu_location location;
    void *win32;
    uint8_t flags[8];
};

// CUmemPoolProps
struct cu_pool_props {
    int type;
    int handle_types;
    struct cu_location location;
    void *win32;
    size_t max_size;
    uint8_t rest[56];
};

// CUDA_MEM_ALLOC_NODE_PARAMS
struct cu_alloc_node {
    struct cu_pool_props pool;
    const void *access;
    size_t access_count;
    size_t bytes;
    cu_ptr ptr;
};

// CUgraphNodeParams, of which only the type and allocations are read
struct cu_node_params {
    int type, reserved[3];
    struct cu_alloc_node alloc;
};

// CUDA_ARRAY_DESCRIPTOR
struct cu_array_desc {
    size_t width, height;
    int format;
    unsigned channels;
};

// CUDA_ARRAY3D_DESCRIPTOR
struct cu_array3d_desc {
    size_t width, height, depth;
    int format;
    unsigned channels;
    unsigned flags;
};

// CUDA_ARRAY_MEMORY_REQUIREMENTS
struct cu_requirements {
    size_t size, alignment;
    unsigned reserved[4];
};

// CUipcMemHandle and CUmemPoolPtrExportData
struct cu_handle_bytes {
    uint8_t bytes[64];
};

// CUDA_EXTERNAL_MEMORY_HANDLE_DESC
struct cu_external_desc {
    int type;
    void *handle[2];
    unsigned long long bytes;
    unsigned flags, reserved[16];
};

// CUDA_ARRAY_SPARSE_PROPERTIES
struct cu_sparse_properties {
    unsigned tile[3], tail_level;
    unsigned long long tail_bytes;
    unsigned flags, reserved[4];
};

// CUarrayMapInfo
struct cu_array_map {
    int resource_type;
    void *resource;
    int subresource_type;
    union {
        struct {
            unsigned level, layer, at[3], extent[3];
        } texels;
        struct {
            unsigned layer;
            unsigned long long at, bytes;
        } tail;
    };
    int operation;
    int handle_type;
    cu_handle handle;
    uint64_t offset;
    unsigned device_mask, flags, reserved[2];
};

// CUDA_MEMCPY2D, CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER, as far as is read here.
struct cu_copy2d {
    uint64_t ends[14];
    size_t width, height;
};

struct cu_copy3d {
    uint64_t ends[22];
    size_t width, height, depth;
};

// CUDA_MEMCPY3D_BATCH_OP, as far as is read here.
struct cu_copy_op {
    uint64_t ends[10];
    size_t width, height, depth;
    unsigned order, flags;
};

// CUDA_LAUNCH_PARAMS
struct cu_launch_params {
    cu_function f;
    unsigned grid[3], block[3], shared;
    cu_stream stream;
    void **params;
};

// CUlaunchConfig
struct cu_launch_config {
    unsigned grid[3], block[3], shared;
    cu_stream stream;
    void *attributes;
    unsigned attribute_count;
};

#endif
