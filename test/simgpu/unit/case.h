// SPDX-License-Identifier: Apache-2.0
//
// What the cases of unit/cuda share, and those that are in a file of their own.

#ifndef SIMGPU_UNIT_CASE_H
#define SIMGPU_UNIT_CASE_H

#include "check.h"
#include "cuda.h"

#define OK(call) SAME(call, CUDA_SUCCESS)
#define MIB ((size_t)1 << 20)

extern CUcontext ctx;

void start(void);
size_t available(void);
CUfunction kernel(const char *image, const char *name);
void launch(CUfunction f, CUstream s);

// cuda_memory.c
void memory(void);
void race(void);
void pools(void);
void vmm(void);
void arrays(void);
void sparse(void);
void ipc(void);
void graph_memory(void);

// cuda_links.c
void switched(void);
void bridged(void);
void fabric(void);

// cuda_runtime.c
void runtime(void);

// cuda_ptx.c
void ptx(void);
void ptx_time(void);
void bad_images(void);
void linker(void);

#endif
