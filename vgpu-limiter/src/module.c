// SPDX-License-Identifier: Apache-2.0
//
// Modules and libraries: their code and variables lie on the device.
//
// What one takes is known when it is loaded (overhead.h); one that doesn't fit is
// unloaded again. Most drivers load the code of a kernel only when its function is
// asked for (CUDA_MODULE_LOADING): then its module is charged more. They can't be told
// to unload a kernel, so one that doesn't fit stays until its module goes, refused and
// not charged. What is loaded in other ways is found with the next function, module or
// context.

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
        vgpu_lock(&call.process->code_lock);                                                   \
        bool kept = vgpu_keep(&call, loaded ? vgpu_key(VGPU_MODULE, (uintptr_t)*(handle)) : 0, \
                              loaded ? vgpu_module_bytes(&call, before) : 0);                  \
        vgpu_unlock(&call.process->code_lock);                                                 \
        if (!kept && loaded)                                                                   \
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

// A call that may load code. The driver's free memory says whether it has, or whether
// somebody has taken some meanwhile: only then is NVML asked.
struct asking {
    struct vgpu_call call;
    struct vgpu_beside before;
    size_t free_bytes; // 0: not to be measured
};

static void ask(struct asking *asking) {
    size_t total;
    asking->free_bytes = 0;
    if (vgpu_begin(&asking->call, 0) != CU_OK ||
        VGPU_REAL(cuMemGetInfo_v2)(&asking->free_bytes, &total) != CU_OK)
        return;
    asking->before = vgpu_module_begin(&asking->call);
}

// Adds to what is charged under the key. False: there is nothing kept under it.
static bool add(struct vgpu_process *process, uint64_t key, uint64_t bytes) {
    struct vgpu_entry entry;
    if (!vgpu_table_take(&process->memory, key, &entry))
        return false;
    entry.value += bytes;
    return vgpu_remember(process, &entry);
}

static cu_result charge(struct asking *asking, uint64_t key) {
    size_t now, total;
    struct vgpu_call *call = &asking->call;
    struct vgpu_process *process = call->process;
    if (asking->free_bytes == 0 || VGPU_REAL(cuMemGetInfo_v2)(&now, &total) != CU_OK || now >= asking->free_bytes)
        return CU_OK;
    vgpu_lock(&process->code_lock);
    uint64_t bytes = vgpu_round(vgpu_module_bytes(call, asking->before));
    bool fits = bytes == 0 || vgpu_try_charge(process, call->here.device, bytes) ||
                vgpu_charge_after_all(process, call->here.device, bytes);
    // What nobody knows the module of goes with the context.
    if (bytes != 0 && fits && !add(process, key, bytes) &&
        !add(process, vgpu_key(VGPU_CONTEXT, (uintptr_t)call->here.ctx), bytes))
        vgpu_uncharge(process, call->here.device, bytes);
    vgpu_unlock(&process->code_lock);
    return fits ? CU_OK : CU_OUT_OF_MEMORY;
}

#define ASK(key, ...)                                              \
    do {                                                           \
        struct asking asking;                                      \
        ask(&asking);                                              \
        cu_result result = __VA_ARGS__;                            \
        return result == CU_OK ? charge(&asking, key) : result;    \
    } while (0)

cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name) {
    ASK(vgpu_key(VGPU_MODULE, (uintptr_t)module), VGPU_REAL(cuModuleGetFunction)(function, module, name));
}

static uint64_t library_of(cu_function kernel) {
    cu_library library;
    return vgpu_has(VGPU_cuKernelGetLibrary) && VGPU_REAL(cuKernelGetLibrary)(&library, kernel) == CU_OK
               ? vgpu_key(VGPU_MODULE, (uintptr_t)library)
               : 0;
}

cu_result cuKernelGetFunction(cu_function *function, cu_function kernel) {
    ASK(library_of(kernel), VGPU_REAL(cuKernelGetFunction)(function, kernel));
}

static uint64_t module_of(cu_function function) {
    cu_module module;
    return vgpu_has(VGPU_cuFuncGetModule) && VGPU_REAL(cuFuncGetModule)(&module, function) == CU_OK
               ? vgpu_key(VGPU_MODULE, (uintptr_t)module)
               : 0;
}

cu_result cuFuncLoad(cu_function function) {
    ASK(module_of(function), VGPU_REAL(cuFuncLoad)(function));
}
