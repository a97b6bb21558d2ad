// SPDX-License-Identifier: Apache-2.0
//
// The driver's own functions, by the rows of hooks.def.
//
// Invariant: a library whose functions have been resolved stays loaded: the addresses
// kept here never dangle, also after a dlclose by others.

#include "runtime/driver.h"

#include "runtime/object.h"

#include <dlfcn.h>

const struct vgpu_driver_function vgpu_driver_functions[VGPU_HOOKS] = {
#define HOOK(library, symbol, base, since, per_thread, why) {#symbol, VGPU_##library},
#define ALSO(library, symbol, base, since, per_thread)
#define USE(library, symbol) {#symbol, VGPU_##library},
#include "runtime/hooks.def"
#undef HOOK
#undef ALSO
#undef USE
};

const char *const vgpu_sonames[] = {"libcuda.so.1", "libnvidia-ml.so.1"};

void *_Atomic vgpu_reals[VGPU_HOOKS];

// Stand in for functions that aren't there. Their callers pass arguments that
// nobody reads.
static cu_result no_cuda(void) { return CU_STUB_LIBRARY; }
static cu_result no_cuda_function(void) { return CU_NOT_SUPPORTED; }
static nv_result no_nvml_function(void) { return NV_FUNCTION_NOT_FOUND; }

static void *absent(uint8_t library) {
    return library == VGPU_CUDA ? (void *)no_cuda_function : (void *)no_nvml_function;
}

void *vgpu_open(const char *path, int flags) {
    static const char *const loaders[] = {"libc.so.6", "libdl.so.2"};
    for (int i = 0; i < 2; i++) {
        struct vgpu_object loader;
        void *open = NULL;
        if (vgpu_object_named(loaders[i], &loader))
            open = vgpu_object_function(&loader, "dlopen");
        if (open != NULL)
            return ((void *(*)(const char *, int))open)(path, flags);
    }
    return NULL;
}

void *vgpu_resolve(enum vgpu_hook wanted) {
    uint8_t library = vgpu_driver_functions[wanted].library;
    struct vgpu_object object;
    if (!vgpu_object_named(vgpu_sonames[library], &object))
        return library == VGPU_CUDA ? (void *)no_cuda : absent(library);
    vgpu_open(object.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE); // for good
    for (int i = 0; i < VGPU_HOOKS; i++) {
        if (vgpu_driver_functions[i].library != library)
            continue;
        void *real = vgpu_object_function(&object, vgpu_driver_functions[i].symbol);
        void *unset = NULL;
        atomic_compare_exchange_strong(&vgpu_reals[i], &unset, real != NULL ? real : absent(library));
    }
    return atomic_load(&vgpu_reals[wanted]);
}

bool vgpu_has(enum vgpu_hook hook) {
    void *real = vgpu_real(hook);
    return real != (void *)no_cuda && real != absent(vgpu_driver_functions[hook].library);
}
