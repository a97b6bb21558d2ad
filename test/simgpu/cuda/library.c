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
    CHECK(module_load(module, ctx, &library->image, NULL));
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
    free((char *)library->image.text);
    module_unload(library);
}

static CUresult load(CUlibrary *library, const void *image, size_t size, struct jit *jit) {
    struct image found;
    CUmodule l, m;
    INITIALIZED;
    NEED(library && image);
    CHECK(image_find(&found, image, size));
    CHECK(module_load(&l, NULL, &found, jit));
    l->image = found;
    l->image.text = strndup(found.text, found.size);
    CUresult ret = l->image.text ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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
    (void)library_options, (void)library_values, (void)library_n;
    return load(library, code, SIZE_MAX, &(struct jit){n, options, values});
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options,
                               void **values, unsigned int n, CUlibraryOption *library_options,
                               void **library_values, unsigned int library_n) {
    char *image;
    size_t size;
    (void)library_options, (void)library_values, (void)library_n;
    CHECK(image_read(path, &image, &size));
    CUresult ret = load(library, image, size, &(struct jit){n, options, values});
    free(image);
    return ret;
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

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    NEED(kernel && name);
    INITIALIZED;
    if (!library) return CUDA_ERROR_INVALID_HANDLE;
    CUfunction f = module_function((CUmodule)library, name);
    if (f) *kernel = (CUkernel)f;
    return f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
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
