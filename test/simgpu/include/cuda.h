// SPDX-License-Identifier: Apache-2.0
//
// cuda.h: Vernier's own declarations of the CUDA driver API subset that the
// simulated driver serves and that the limiter watches.
//
// Invariants:
// - Layouts, enum values and symbol names are those of the public 64-bit ABI
//   of libcuda.so.1 on Linux; a program built against NVIDIA's header runs
//   unchanged on the simulated library. Of the values of an enum there are those
//   that something here names.
// - Every function is spelled as in the library's symbol table (cuMemAlloc_v2,
//   not cuMemAlloc): there is no macro that renames a call. NVIDIA's header
//   maps cuMemAlloc to cuMemAlloc_v2 and, under CUDA_API_PER_THREAD_DEFAULT_STREAM,
//   cuLaunchKernel to cuLaunchKernel_ptsz; here one writes the symbol.
// - 32-bit era symbols (the unsuffixed forms that a _v2 replaced in CUDA 3.2
//   and 4.0) are not declared, but for those that programs were seen to use.
#ifndef VERNIER_SIMGPU_CUDA_H
#define VERNIER_SIMGPU_CUDA_H

#include <stddef.h>
#include <stdint.h>

// The newest API version declared here; cuDriverGetVersion tells what the
// driver in use really has.
#define CUDA_VERSION 13000

#define CUDAAPI
#define CUDA_CB

#include "cuda/results.h"
#include "cuda/types.h"
#include "cuda/attributes.h"
#include "cuda/memory_types.h"
#include "cuda/graph_types.h"

// Calls that take a stream exist twice: plain (stream 0 is the legacy default
// stream) and _ptsz (stream 0 is the thread's own). Synchronous calls on the
// default stream have a _ptds twin in the same way.
#define CU_PTSZ(name, ...)            \
    CUresult CUDAAPI name(__VA_ARGS__); \
    CUresult CUDAAPI name##_ptsz(__VA_ARGS__)
#define CU_PTDS(name, ...)            \
    CUresult CUDAAPI name(__VA_ARGS__); \
    CUresult CUDAAPI name##_ptds(__VA_ARGS__)

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda/device_api.h"
#include "cuda/memory_api.h"
#include "cuda/copy_api.h"
#include "cuda/stream_api.h"
#include "cuda/module_api.h"
#include "cuda/graph_api.h"

#ifdef __cplusplus
}
#endif

#endif
