// SPDX-License-Identifier: Apache-2.0
//
// library.c: libraries and their kernels, which belong to no context.
//
// Invariants:
// - A library is loaded as a module into each context in which something of it is
//   asked for, and into the one that is current when it is loaded. That module goes with
//   its context, and is loaded anew into the next one.
// - A library's own record is a module without a context, a kernel its function: a
//   launch finds the function of the current context (launch.c).
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <string.h>

static pthread_mutex_t libraries = PTHREAD_MUTEX_INITIALIZER;

// The library's module in the current context, with the lock held.
static CUresult module_here(CUmodule *module, CUmodule library) {
    CUcontext ctx;
    CHECK(need_context(&ctx));
    for (CUmodule *m = &library->loaded; *m;) {
        CUmodule it = *m;
        if (!module_lives(it)) {
            *m = it->loaded;
            module_unload(it);
        } else if (it->ctx == ctx) {
            *module = it;
            return CUDA_SUCCESS;
        } else {
            m = &it->loaded;
        }
    }
    CHECK(module_load(module, ctx, library->text));
    (*module)->loaded = library->loaded;
    library->loaded = *module;
    return CUDA_SUCCESS;
}

static void unload(CUmodule library) {
    while (library->loaded) {
        CUmodule m = library->loaded;
        library->loaded = m->loaded;
        module_unload(m);
    }
    free(library->text);
    module_unload(library);
}

static CUresult load(CUlibrary *library, const void *image) {
    CUmodule l, m;
    INITIALIZED;
    NEED(library && image);
    const char *text = module_text(image);
    if (!text) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    CHECK(module_load(&l, NULL, text));
    l->text = strdup(text);
    CUresult ret = l->text ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (ret == CUDA_SUCCESS && current) ret = module_here(&m, l);
    if (ret == CUDA_SUCCESS)
        *library = (CUlibrary)l;
    else
        unload(l);
    return ret;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options,
                           void **values, unsigned int n, CUlibraryOption *library_options,
                           void **library_values, unsigned int library_n) {
    (void)options, (void)values, (void)n, (void)library_options, (void)library_values;
    (void)library_n;
    return load(library, code);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options,
                               void **values, unsigned int n, CUlibraryOption *library_options,
                               void **library_values, unsigned int library_n) {
    char text[IMAGE_ROOM];
    (void)options, (void)values, (void)n, (void)library_options, (void)library_values;
    (void)library_n;
    CHECK(image_read(path, text, sizeof text));
    return load(library, text);
}

CUresult cuLibraryUnload(CUlibrary library) {
    INITIALIZED;
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&libraries);
    unload((CUmodule)library);
    pthread_mutex_unlock(&libraries);
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    NEED(module && library);
    pthread_mutex_lock(&libraries);
    CUresult ret = module_here(module, (CUmodule)library);
    pthread_mutex_unlock(&libraries);
    return ret;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *at, size_t *bytes, CUlibrary library, const char *name) {
    CUmodule m;
    CHECK(cuLibraryGetModule(&m, library));
    return cuModuleGetGlobal_v2(at, bytes, m, name);
}

CUresult cuLibraryGetManaged(CUdeviceptr *at, size_t *bytes, CUlibrary library,
                             const char *name) {
    (void)at, (void)bytes;
    NEED(library && name);
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    NEED(kernel && name);
    INITIALIZED;
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    CUfunction f = module_function((CUmodule)library, name);
    if (f) *kernel = (CUkernel)f;
    return f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library) {
    return cuModuleGetFunctionCount(count, (CUmodule)library);
}

CUresult kernel_function(CUfunction kernel, CUfunction *f) {
    CUmodule m;
    CHECK(cuLibraryGetModule(&m, (CUlibrary)kernel->module));
    *f = module_function(m, kernel->name);
    return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *f, CUkernel kernel) {
    NEED(f);
    INITIALIZED;
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    CHECK(kernel_function((CUfunction)kernel, f));
    return load_code(*f);
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel) {
    NEED(library);
    INITIALIZED;
    if (!kernel) return CUDA_ERROR_INVALID_HANDLE;
    *library = (CUlibrary)((CUfunction)kernel)->module;
    return CUDA_SUCCESS;
}
