// SPDX-License-Identifier: Apache-2.0
//
// Modules and libraries: their code and variables lie on the device.
//
// What one takes is known when it is loaded (overhead.h); one that doesn't fit is
// unloaded again. Code that the driver loads later, at a kernel's first use, is
// found with the next module or context.

#include "overhead.h"

// A module belongs to the context and goes with it; a library doesn't.
#define LOAD(handle, unload, owned, ...)                                                       \
    do {                                                                                       \
        struct vgpu_call call;                                                                 \
        if (vgpu_begin(&call, 0) != CU_OK)                                                     \
            return call.process == NULL || (owned) ? call.result : __VA_ARGS__;                \
        struct vgpu_beside before = vgpu_module_begin(&call);                                  \
        call.result = __VA_ARGS__;                                                             \
        bool loaded = call.result == CU_OK;                                                    \
        if (!(owned))                                                                          \
            call.here.ctx = NULL;                                                              \
        if (!vgpu_keep(&call, loaded ? vgpu_key(VGPU_MODULE, (uintptr_t)*(handle)) : 0,        \
                       loaded ? vgpu_module_bytes(&call, before) : 0) && loaded)               \
            VGPU_REAL(unload)(*(handle));                                                      \
        return call.result;                                                                    \
    } while (0)

cu_result cuModuleLoad(cu_module *module, const char *path) {
    LOAD(module, cuModuleUnload, true, VGPU_REAL(cuModuleLoad)(module, path));
}
cu_result cuModuleLoadData(cu_module *module, const void *image) {
    LOAD(module, cuModuleUnload, true, VGPU_REAL(cuModuleLoadData)(module, image));
}
cu_result cuModuleLoadDataEx(cu_module *module, const void *image, unsigned count, void *options,
                             void **values) {
    LOAD(module, cuModuleUnload, true,
         VGPU_REAL(cuModuleLoadDataEx)(module, image, count, options, values));
}
cu_result cuModuleLoadFatBinary(cu_module *module, const void *image) {
    LOAD(module, cuModuleUnload, true, VGPU_REAL(cuModuleLoadFatBinary)(module, image));
}
cu_result cuLibraryLoadData(cu_library *library, const void *code, void *jit, void **jit_values,
                            unsigned jit_count, void *options, void **values, unsigned count) {
    LOAD(library, cuLibraryUnload, false,
         VGPU_REAL(cuLibraryLoadData)(library, code, jit, jit_values, jit_count, options, values,
                                      count));
}
cu_result cuLibraryLoadFromFile(cu_library *library, const char *path, void *jit, void **jit_values,
                                unsigned jit_count, void *options, void **values, unsigned count) {
    LOAD(library, cuLibraryUnload, false,
         VGPU_REAL(cuLibraryLoadFromFile)(library, path, jit, jit_values, jit_count, options, values,
                                          count));
}

cu_result cuModuleUnload(cu_module module) {
    struct vgpu_release release;
    vgpu_release_begin(&release, vgpu_key(VGPU_MODULE, (uintptr_t)module));
    cu_result result = VGPU_REAL(cuModuleUnload)(module);
    vgpu_release_end(&release, result);
    return result;
}
cu_result cuLibraryUnload(cu_library library) {
    struct vgpu_release release;
    vgpu_release_begin(&release, vgpu_key(VGPU_MODULE, (uintptr_t)library));
    cu_result result = VGPU_REAL(cuLibraryUnload)(library);
    vgpu_release_end(&release, result);
    return result;
}
