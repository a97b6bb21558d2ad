// SPDX-License-Identifier: Apache-2.0
//
// module.c: modules and their functions, in a text format of our own:
//
//   simgpu-module 1
//   kernel NAME BASE_NS [PER_BLOCK_NS] [argument]
//   global NAME BYTES
//   code NAME BYTES
//
// The code of the kernel NAME, which comes before, takes so many bytes of the device
// from its first use on, as where CUDA_MODULE_LOADING is LAZY: when its function is
// asked for, or when it is launched. Other kernels' code takes none.
//
// A launch of the kernel takes BASE_NS plus PER_BLOCK_NS for every block of the
// grid; with the word "argument" the first kernel argument, an unsigned 64-bit
// integer, adds that many nanoseconds. Blanks separate, a line ends with a
// newline, the text with a zero byte.
//
// Invariants:
// - Anything else (ELF, PTX, fat binaries without such a text) is NO_BINARY_FOR_GPU:
//   there is no processor here that could run it.
// - A module's memory goes with its context, and is given back once.
#define _GNU_SOURCE
#include "internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lazily = PTHREAD_MUTEX_INITIALIZER;

bool module_lives(const struct CUmod_st *m) {
    return m->ctx && m->ctx->id == m->life && !atomic_load(&m->ctx->destroyed);
}

void module_unload(CUmodule m) {
    bool lives = module_lives(m);
    while (m->functions) {
        CUfunction f = m->functions;
        m->functions = f->next;
        if (f->code && lives) release(f->code);
        free(f);
    }
    while (m->globals) {
        struct global *g = m->globals;
        m->globals = g->next;
        if (lives) release(g->at);
        free(g);
    }
    free(m);
}

static CUresult add_kernel(CUmodule m, const char *line) {
    CUfunction f = calloc(1, sizeof *f);
    char argument[16] = "";
    if (!f) return CUDA_ERROR_OUT_OF_MEMORY;
    int n = sscanf(line, "kernel %63s %" SCNu64 " %" SCNu64 " %15s", f->name, &f->base_ns,
                   &f->per_block_ns, argument);
    if (n == 2) n += sscanf(line, "kernel %*s %*u %15s", argument) == 1;
    f->first_argument_ns = strcmp(argument, "argument") == 0;
    if (n < 2 || (*argument && !f->first_argument_ns)) {
        free(f);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    f->module = m;
    f->loads = !m->ctx;
    f->block[0] = f->block[1] = f->block[2] = 1;
    f->max_dynamic_shared = 49152;
    f->next = m->functions;
    m->functions = f;
    m->count++;
    return CUDA_SUCCESS;
}

static CUresult add_global(CUcontext ctx, CUmodule m, const char *line) {
    struct global *g = calloc(1, sizeof *g);
    if (!g) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult ret = sscanf(line, "global %63s %zu", g->name, &g->size) != 2 ? CUDA_ERROR_INVALID_IMAGE
                   : ctx ? allocate(ctx, g->size, BLOCK_PLAIN, NULL, &g->at)
                         : CUDA_SUCCESS;
    if (ret != CUDA_SUCCESS) {
        free(g);
        return ret;
    }
    g->next = m->globals;
    m->globals = g;
    return CUDA_SUCCESS;
}

CUfunction module_function(CUmodule m, const char *name) {
    CUfunction f = m->functions;
    while (f && strcmp(f->name, name) != 0) f = f->next;
    return f;
}

static CUresult add_code(CUmodule m, const char *line) {
    char name[64];
    size_t bytes;
    CUfunction f = sscanf(line, "code %63s %zu", name, &bytes) == 2 ? module_function(m, name) : NULL;
    if (!f) return CUDA_ERROR_INVALID_IMAGE;
    f->code_bytes = bytes;
    f->loads = true;
    return CUDA_SUCCESS;
}

CUresult load_code(CUfunction f) {
    CUresult ret = CUDA_SUCCESS;
    if (f->module->text) CHECK(kernel_function(f, &f));
    pthread_mutex_lock(&lazily);
    if (f->code_bytes && !f->code) ret = allocate(f->module->ctx, f->code_bytes, BLOCK_PLAIN, NULL, &f->code);
    pthread_mutex_unlock(&lazily);
    return ret;
}

CUresult module_load(CUmodule *module, CUcontext ctx, const char *text) {
    CUmodule m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    m->ctx = ctx;
    m->life = ctx ? ctx->id : 0;
    CUresult ret = CUDA_SUCCESS;
    for (const char *p = text; *p && ret == CUDA_SUCCESS;) {
        char line[256];
        size_t n = strcspn(p, "\n");
        snprintf(line, sizeof line, "%.*s", (int)n, p);
        if (strncmp(line, "kernel ", 7) == 0)
            ret = add_kernel(m, line);
        else if (strncmp(line, "global ", 7) == 0)
            ret = add_global(ctx, m, line);
        else if (strncmp(line, "code ", 5) == 0)
            ret = add_code(m, line);
        else if (*line)
            ret = CUDA_ERROR_INVALID_IMAGE;
        p += n + (p[n] == '\n');
    }
    if (ret != CUDA_SUCCESS) {
        module_unload(m);
        return ret;
    }
    *module = m;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    CUcontext ctx;
    NEED(module && image);
    CHECK(need_context(&ctx));
    const char *text = module_text(image);
    return text ? module_load(module, ctx, text) : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n,
                            CUjit_option *options, void **values) {
    (void)n, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return cuModuleLoadData(module, image);
}

CUresult image_read(const char *path, char *text, size_t room) {
    NEED(path);
    FILE *f = fopen(path, "re");
    if (!f) return CUDA_ERROR_FILE_NOT_FOUND;
    size_t n = fread(text, 1, room - 1, f);
    fclose(f);
    text[n] = 0;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
    char text[IMAGE_ROOM];
    CHECK(image_read(path, text, sizeof text));
    return cuModuleLoadData(module, text);
}

CUresult cuModuleUnload(CUmodule module) {
    INITIALIZED;
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    module_unload(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    NEED(mode);
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    NEED(function && name);
    INITIALIZED;
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    CUfunction f = module_function(module, name);
    if (!f) return CUDA_ERROR_NOT_FOUND;
    *function = f;
    return load_code(f);
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module) {
    NEED(count && module);
    *count = module->count;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *at, size_t *bytes, CUmodule module, const char *name) {
    NEED(name);
    INITIALIZED;
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    for (struct global *g = module->globals; g; g = g->next)
        if (strcmp(g->name, name) == 0) {
            if (at) *at = g->at;
            if (bytes) *bytes = g->size;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}
