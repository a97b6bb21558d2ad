// SPDX-License-Identifier: Apache-2.0
//
// link.c: the linker. What it makes is the PTX that it was given, one text behind the
// other, and loads as a module.
//
// Invariants:
// - Each input is read when it is added, and refused then; two inputs that define the
//   same kernel are refused at the end.
// - The linked image belongs to the linker's state and goes with it.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <string.h>

struct CUlinkState_st {
    struct jit jit;
    char *text;
    size_t size;
};

static CUresult check(const char *text, size_t size, struct jit *jit) {
    CUmodule m;
    struct image image = {text, size, true};
    CHECK(module_load(&m, NULL, &image, jit));
    module_unload(m);
    return CUDA_SUCCESS;
}

CUresult cuLinkCreate_v2(unsigned int n, CUjit_option *options, void **values, CUlinkState *state) {
    CUcontext ctx;
    NEED(state && (!n || (options && values)));
    CHECK(need_context(&ctx));
    *state = calloc(1, sizeof **state);
    if (!*state) return CUDA_ERROR_OUT_OF_MEMORY;
    (*state)->jit = (struct jit){n, options, values};
    return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size,
                          const char *name, unsigned int n, CUjit_option *options, void **values) {
    struct image found;
    (void)name, (void)n, (void)options, (void)values;
    INITIALIZED;
    if (!state) return CUDA_ERROR_INVALID_HANDLE;
    NEED(data && size && (unsigned)type <= CU_JIT_INPUT_NVVM);
    CHECK(image_find(&found, data, size));
    if (!found.ptx) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    CHECK(check(found.text, found.size, &state->jit));
    char *text = realloc(state->text, state->size + found.size + 2);
    if (!text) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(text + state->size, found.text, found.size);
    memcpy(text + state->size + found.size, "\n", 2);
    state->text = text;
    state->size += found.size + 1;
    return CUDA_SUCCESS;
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned int n,
                          CUjit_option *options, void **values) {
    char *data;
    size_t size;
    CHECK(image_read(path, &data, &size));
    CUresult ret = cuLinkAddData_v2(state, type, data, size, path, n, options, values);
    free(data);
    return ret;
}

CUresult cuLinkComplete(CUlinkState state, void **cubin, size_t *size) {
    INITIALIZED;
    if (!state) return CUDA_ERROR_INVALID_HANDLE;
    NEED(cubin && state->text);
    CHECK(check(state->text, state->size, &state->jit));
    *cubin = state->text;
    if (size) *size = state->size + 1;
    return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state) {
    INITIALIZED;
    if (!state) return CUDA_ERROR_INVALID_HANDLE;
    free(state->text);
    free(state);
    return CUDA_SUCCESS;
}
