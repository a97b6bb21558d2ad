// SPDX-License-Identifier: Apache-2.0
//
// results.h: CUresult, the driver API's error codes (cuda_error in the ABI).
// Values never change meaning; a driver may return values not listed here.
#ifndef VERNIER_SIMGPU_CUDA_RESULTS_H
#define VERNIER_SIMGPU_CUDA_RESULTS_H

// X(code, value, text): one table serves the enum, cuGetErrorName and
// cuGetErrorString.
#define CU_RESULT_TABLE(X)                                                             \
    X(CUDA_SUCCESS, 0, "no error")                                                     \
    X(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument")                                 \
    X(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory")                                    \
    X(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error")                           \
    X(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down")                             \
    X(CUDA_ERROR_PROFILER_DISABLED, 5, "profiler disabled")                            \
    X(CUDA_ERROR_STUB_LIBRARY, 34, "stub library loaded instead of the driver")        \
    X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46, "device busy or unavailable")                 \
    X(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected")                 \
    X(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal")                        \
    X(CUDA_ERROR_DEVICE_NOT_LICENSED, 102, "device has no valid licence")              \
    X(CUDA_ERROR_INVALID_IMAGE, 200, "device kernel image is invalid")                 \
    X(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context")                       \
    X(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, 202, "context already current")              \
    X(CUDA_ERROR_MAP_FAILED, 205, "mapping of buffer object failed")                   \
    X(CUDA_ERROR_UNMAP_FAILED, 206, "unmapping of buffer object failed")               \
    X(CUDA_ERROR_ARRAY_IS_MAPPED, 207, "array is mapped")                              \
    X(CUDA_ERROR_ALREADY_MAPPED, 208, "resource already mapped")                       \
    X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image for this device")            \
    X(CUDA_ERROR_ALREADY_ACQUIRED, 210, "resource already acquired")                   \
    X(CUDA_ERROR_NOT_MAPPED, 211, "resource not mapped")                               \
    X(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, 212, "resource not mapped as array")             \
    X(CUDA_ERROR_NOT_MAPPED_AS_POINTER, 213, "resource not mapped as pointer")         \
    X(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error encountered")        \
    X(CUDA_ERROR_UNSUPPORTED_LIMIT, 215, "limit is not supported on this device")      \
    X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, 216, "context is in use by another thread")   \
    X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217, "peer access is not supported")         \
    X(CUDA_ERROR_INVALID_PTX, 218, "PTX compilation failed")                           \
    X(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, 219, "invalid graphics context")            \
    X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220, "uncorrectable NVLink error")              \
    X(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, 221, "PTX JIT compiler library not found")    \
    X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222, "unsupported PTX version")              \
    X(CUDA_ERROR_JIT_COMPILATION_DISABLED, 223, "PTX JIT compilation disabled")        \
    X(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, 224, "exec affinity not supported")        \
    X(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, 225, "device-side sync not supported")      \
    X(CUDA_ERROR_CONTAINED, 226, "contained exception on the device")                  \
    X(CUDA_ERROR_INVALID_SOURCE, 300, "device kernel source is invalid")               \
    X(CUDA_ERROR_FILE_NOT_FOUND, 301, "file not found")                                \
    X(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, 302, "shared object symbol not found") \
    X(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, 303, "shared object initialization failed") \
    X(CUDA_ERROR_OPERATING_SYSTEM, 304, "OS call failed or not supported")             \
    X(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle")                       \
    X(CUDA_ERROR_ILLEGAL_STATE, 401, "operation not permitted in the present state")   \
    X(CUDA_ERROR_LOSSY_QUERY, 402, "query would lose information")                     \
    X(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found")                             \
    X(CUDA_ERROR_NOT_READY, 600, "device not ready")                                   \
    X(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "illegal memory access")                        \
    X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested")         \
    X(CUDA_ERROR_LAUNCH_TIMEOUT, 702, "kernel timed out")                              \
    X(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, 703, "incompatible texturing mode")    \
    X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704, "peer access already enabled")      \
    X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705, "peer access not enabled")              \
    X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708, "primary context is active")             \
    X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed")                    \
    X(CUDA_ERROR_ASSERT, 710, "device-side assert triggered")                          \
    X(CUDA_ERROR_TOO_MANY_PEERS, 711, "peer mapping resources exhausted")              \
    X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "host memory already registered") \
    X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "host memory not registered")        \
    X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714, "hardware stack error")                    \
    X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715, "illegal instruction")                      \
    X(CUDA_ERROR_MISALIGNED_ADDRESS, 716, "misaligned address")                        \
    X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717, "invalid address space")                  \
    X(CUDA_ERROR_INVALID_PC, 718, "invalid program counter")                           \
    X(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure")                     \
    X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720, "cooperative launch too large")    \
    X(CUDA_ERROR_TENSOR_MEMORY_LEAK, 721, "tensor memory not freed")                   \
    X(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted")                        \
    X(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported")                        \
    X(CUDA_ERROR_SYSTEM_NOT_READY, 802, "system not yet initialized")                  \
    X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803, "display and CUDA driver versions differ") \
    X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804, "forward compatibility not supported") \
    X(CUDA_ERROR_MPS_CONNECTION_FAILED, 805, "MPS client failed to connect")           \
    X(CUDA_ERROR_MPS_RPC_FAILURE, 806, "MPS RPC failure")                              \
    X(CUDA_ERROR_MPS_SERVER_NOT_READY, 807, "MPS server is not ready")                 \
    X(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, 808, "MPS has its maximum of clients")       \
    X(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, 809, "MPS has its maximum of connections") \
    X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810, "MPS client terminated by the server")    \
    X(CUDA_ERROR_CDP_NOT_SUPPORTED, 811, "dynamic parallelism not supported")          \
    X(CUDA_ERROR_CDP_VERSION_MISMATCH, 812, "dynamic parallelism versions differ")     \
    X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "not permitted while capturing")     \
    X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "capture was invalidated")           \
    X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902, "would merge two captures")                \
    X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "capture was not started here")        \
    X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904, "capture has unjoined work")            \
    X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905, "dependency crosses the capture")      \
    X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906, "implicit dependency on a capture")     \
    X(CUDA_ERROR_CAPTURED_EVENT, 907, "event was recorded in a capture")               \
    X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "capture ended by another thread")  \
    X(CUDA_ERROR_TIMEOUT, 909, "wait timed out")                                       \
    X(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, 910, "graph update not possible")          \
    X(CUDA_ERROR_EXTERNAL_DEVICE, 911, "external device error")                        \
    X(CUDA_ERROR_INVALID_CLUSTER_SIZE, 912, "invalid cluster size")                    \
    X(CUDA_ERROR_FUNCTION_NOT_LOADED, 913, "function not loaded")                      \
    X(CUDA_ERROR_INVALID_RESOURCE_TYPE, 914, "invalid resource type")                  \
    X(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, 915, "invalid resource configuration") \
    X(CUDA_ERROR_UNKNOWN, 999, "unknown error")

#define CU_RESULT_ENUM(code, value, text) code = value,
typedef enum cudaError_enum { CU_RESULT_TABLE(CU_RESULT_ENUM) } CUresult;
#undef CU_RESULT_ENUM

#endif
