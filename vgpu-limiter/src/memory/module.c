// SPDX-License-Identifier: Apache-2.0
//
// Modules and libraries: their code and variables lie on the device.
//
// What one takes is known when it is loaded (overhead.h); one that doesn't fit is
// unloaded again. Most drivers load the code of a kernel only when its function is
// asked for (CUDA_MODULE_LOADING): then its module is charged more. They have no call
// to unload a kernel, so one that doesn't fit stays until its module goes, refused and
// not charged. What is loaded in other ways is found with the next function, module or
// context.
//
// Invariants:
//   1. What is loaded goes with its context. A library is in each context a module of
//      its own: it has an entry for each, under its handle and the next few numbers,
//      which no other handle has, and the module's handle leads to the library.
//   2. A module that isn't known, since the CUDA runtime may load them by the driver's
//      private tables, is measured when something of it is first asked for.
//   3. What was asked for before, of the same handle in the same context, loads nothing
//      and isn't measured: programs may ask before each launch. That holds until something
//      is unloaded or a context or stream goes.

#include "memory/overhead.h"

#include <string.h>

#define LIBRARY_CONTEXTS 8 // handles are addresses of that alignment at least

#define LOAD(symbol, parameters, arguments)                                                       \
    cu_result symbol parameters {                                                                 \
        struct vgpu_call call;                                                                    \
        if (vgpu_begin(&call, 0) != CU_OK)                                                        \
            return call.result;                                                                   \
        struct vgpu_beside before = vgpu_module_begin(&call);                                     \
        call.result = VGPU_REAL(symbol) arguments;                                                \
        bool loaded = call.result == CU_OK;                                                       \
        vgpu_lock(&call.process->modules.lock);                                                   \
        bool kept = vgpu_commit(&call, loaded ? vgpu_key(VGPU_MODULE, (uintptr_t)*module) : 0,    \
                                loaded ? vgpu_module_bytes(&call, before) : 0);                   \
        vgpu_unlock(&call.process->modules.lock);                                                 \
        if (!kept && loaded)                                                                      \
            VGPU_REAL(cuModuleUnload)(*module);                                                   \
        return call.result;                                                                       \
    }
LOAD(cuModuleLoad, (cu_module *module, const char *path), (module, path))
LOAD(cuModuleLoadData, (cu_module *module, const void *image), (module, image))
LOAD(cuModuleLoadDataEx, (cu_module *module, const void *image, unsigned count, void *options, void **values),
     (module, image, count, options, values))
LOAD(cuModuleLoadFatBinary, (cu_module *module, const void *image), (module, image))

// Before the driver is called, which may give the handle to the next at once.
static void forget_asked(void) {
    cu_result why;
    struct vgpu_process *process = vgpu_process(&why);
    if (process != NULL)
        atomic_fetch_add(&process->modules.unloads, 1);
}

cu_result cuModuleUnload(cu_module module) {
    struct vgpu_release release;
    forget_asked();
    vgpu_release_begin(&release, vgpu_key(VGPU_MODULE, (uintptr_t)module));
    cu_result result = VGPU_REAL(cuModuleUnload)(module);
    vgpu_release_end(&release, result);
    return result;
}

// A call that may load code. The driver's free memory says whether it has, or whether
// another process has taken some: only then is NVML asked, or where nothing is known
// of the module.
struct asking {
    struct vgpu_call call;
    struct vgpu_beside before;
    size_t free_bytes; // 0: not to be measured
    uint64_t what;     // that is asked for; 0 if it may load something each time
};

static uint64_t what_of(const struct vgpu_call *call, enum vgpu_hook hook, const void *of, const char *name) {
    uint64_t words[] = {(uintptr_t)of, (uintptr_t)call->here.ctx, (uint64_t)vgpu_epoch() << 32 | (unsigned)hook,
                        atomic_load(&call->process->modules.unloads)};
    uint64_t hash = vgpu_hash(VGPU_HASH_START, words, sizeof words);
    return vgpu_hash(hash, name, strlen(name)) | 1;
}

static _Atomic uint64_t *place_of(const struct asking *asking) {
    return &asking->call.process->modules.asked[asking->what * UINT64_C(0x9e3779b97f4a7c15) >> 32 & (VGPU_ASKED - 1)];
}

// For a function or variable of this name, "" where the handle says it all, NULL for what
// may load something each time.
static void ask(struct asking *asking, enum vgpu_hook hook, const void *of, const char *name) {
    size_t total;
    asking->free_bytes = 0;
    if (vgpu_begin(&asking->call, 0) != CU_OK)
        return;
    asking->what = name != NULL ? what_of(&asking->call, hook, of, name) : 0;
    if (asking->what != 0 && atomic_load(place_of(asking)) == asking->what)
        return;
    if (VGPU_REAL(cuMemGetInfo_v2)(&asking->free_bytes, &total) == CU_OK)
        asking->before = vgpu_module_begin(&asking->call);
    else
        asking->free_bytes = 0;
}

static bool is_known(struct vgpu_process *process, uint64_t key) {
    return key == 0 || vgpu_table_get(&process->table, key, &(struct vgpu_entry){0});
}

// Adds to what is charged under the key. False: there is nothing kept under it.
static bool add(struct vgpu_process *process, uint64_t key, uint64_t bytes) {
    struct vgpu_entry entry;
    if (key == 0 || !vgpu_table_take(&process->table, key, &entry))
        return false;
    entry.value += bytes;
    return vgpu_remember(process, &entry);
}

static bool begin_entry(const struct vgpu_call *call, uint64_t key, uint64_t bytes) {
    struct vgpu_entry entry = {key, vgpu_value(bytes, call->here.device), call->here.ctx};
    return key != 0 && vgpu_remember(call->process, &entry);
}

// Reports whether what was loaded, if anything, fits; then it is charged.
static bool settle(struct asking *asking, uint64_t key) {
    size_t now, total;
    struct vgpu_call *call = &asking->call;
    struct vgpu_process *process = call->process;
    if (is_known(process, key) &&
        (VGPU_REAL(cuMemGetInfo_v2)(&now, &total) != CU_OK || now >= asking->free_bytes))
        return true;
    vgpu_lock(&process->modules.lock);
    uint64_t bytes = vgpu_round(vgpu_module_bytes(call, asking->before));
    bool fits = bytes == 0 || vgpu_charge_or_trim(process, call->here.device, bytes);
    // What nobody knows the module of goes with the context.
    if (fits && !add(process, key, bytes) && !begin_entry(call, key, bytes) &&
        !add(process, vgpu_key(VGPU_CONTEXT, (uintptr_t)call->here.ctx), bytes))
        vgpu_uncharge(process, call->here.device, bytes);
    vgpu_unlock(&process->modules.lock);
    return fits;
}

static cu_result charge(struct asking *asking, uint64_t key) {
    if (asking->free_bytes == 0)
        return CU_OK;
    if (!settle(asking, key))
        return CU_OUT_OF_MEMORY;
    if (asking->what != 0)
        atomic_store(place_of(asking), asking->what);
    return CU_OK;
}

#define ASK(hook, of, name, key, ...)                              \
    do {                                                           \
        struct asking asking;                                      \
        ask(&asking, hook, of, name);                              \
        cu_result result = __VA_ARGS__;                            \
        return result == CU_OK ? charge(&asking, key) : result;    \
    } while (0)

// In how many contexts a library can have an entry of its own.
static int contexts_of(cu_library library) { return (uintptr_t)library % LIBRARY_CONTEXTS == 0 ? LIBRARY_CONTEXTS : 1; }

// The entry of a library in the calling thread's context, or where it is to be; the
// context's own if the library is in too many.
static uint64_t key_in(const struct asking *asking, cu_library library) {
    struct vgpu_entry entry;
    uint64_t handle = (uintptr_t)library;
    if (asking->free_bytes == 0 || library == NULL)
        return 0;
    for (int i = 0; i < contexts_of(library); i++) {
        uint64_t key = vgpu_key(VGPU_MODULE, handle + (uint64_t)i);
        if (!vgpu_table_get(&asking->call.process->table, key, &entry) || entry.owner == asking->call.here.ctx)
            return key;
    }
    return vgpu_key(VGPU_CONTEXT, (uintptr_t)asking->call.here.ctx);
}

// Notes whose module it is; handles are addresses, and fit where bytes do.
static void lead(const struct asking *asking, cu_module module, cu_library library) {
    struct vgpu_entry old, entry = {vgpu_key(VGPU_PART, (uintptr_t)module), (uintptr_t)library & VGPU_BYTES_MASK,
                                    asking->call.here.ctx};
    if (asking->free_bytes != 0)
        vgpu_table_put(&asking->call.process->table, &entry, &old); // or what it takes goes with the context
}

static uint64_t key_of(const struct asking *asking, cu_module module) {
    struct vgpu_entry entry;
    uint64_t key = vgpu_key(VGPU_MODULE, (uintptr_t)module);
    if (asking->free_bytes == 0 || key == 0 || vgpu_table_get(&asking->call.process->table, key, &entry) ||
        !vgpu_table_get(&asking->call.process->table, vgpu_key(VGPU_PART, (uintptr_t)module), &entry))
        return key;
    return key_in(asking, (cu_library)(uintptr_t)entry.value);
}

static cu_module module_of(cu_function function) {
    cu_module module;
    return vgpu_has(VGPU_cuFuncGetModule) && VGPU_REAL(cuFuncGetModule)(&module, function) == CU_OK ? module : NULL;
}

static cu_library library_of(cu_function kernel) {
    cu_library library;
    return vgpu_has(VGPU_cuKernelGetLibrary) && VGPU_REAL(cuKernelGetLibrary)(&library, kernel) == CU_OK ? library
                                                                                                         : NULL;
}

cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name) {
    ASK(VGPU_cuModuleGetFunction, module, name, key_of(&asking, module),
        VGPU_REAL(cuModuleGetFunction)(function, module, name));
}

cu_result cuModuleGetGlobal_v2(cu_ptr *ptr, size_t *bytes, cu_module module, const char *name) {
    ASK(VGPU_cuModuleGetGlobal_v2, module, name, key_of(&asking, module),
        VGPU_REAL(cuModuleGetGlobal_v2)(ptr, bytes, module, name));
}

cu_result cuFuncLoad(cu_function function) {
    ASK(VGPU_cuFuncLoad, function, "", key_of(&asking, module_of(function)), VGPU_REAL(cuFuncLoad)(function));
}

// Without a context nothing is loaded yet.
#define LOAD_LIBRARY(symbol, parameters, arguments)                                    \
    cu_result symbol parameters {                                                      \
        struct asking asking;                                                          \
        ask(&asking, 0, NULL, NULL);                                                   \
        if (asking.call.process == NULL)                                               \
            return asking.call.result;                                                 \
        cu_result result = VGPU_REAL(symbol) arguments;                                \
        if (result != CU_OK)                                                           \
            return result;                                                             \
        result = charge(&asking, key_in(&asking, *library));                           \
        if (result != CU_OK)                                                           \
            VGPU_REAL(cuLibraryUnload)(*library);                                      \
        return result;                                                                 \
    }
#define JIT void *jit, void **jit_values, unsigned jit_count, void *options, void **values, unsigned count
LOAD_LIBRARY(cuLibraryLoadData, (cu_library *library, const void *code, JIT),
             (library, code, jit, jit_values, jit_count, options, values, count))
LOAD_LIBRARY(cuLibraryLoadFromFile, (cu_library *library, const char *path, JIT),
             (library, path, jit, jit_values, jit_count, options, values, count))

cu_result cuLibraryUnload(cu_library library) {
    struct vgpu_release release[LIBRARY_CONTEXTS];
    forget_asked();
    for (int i = 0; i < contexts_of(library); i++)
        vgpu_release_begin(&release[i], library == NULL ? 0 : vgpu_key(VGPU_MODULE, (uintptr_t)library + (uintptr_t)i));
    cu_result result = VGPU_REAL(cuLibraryUnload)(library);
    for (int i = 0; i < contexts_of(library); i++)
        vgpu_release_end(&release[i], result);
    return result;
}

cu_result cuLibraryGetModule(cu_module *module, cu_library library) {
    struct asking asking;
    ask(&asking, VGPU_cuLibraryGetModule, library, "");
    cu_result result = VGPU_REAL(cuLibraryGetModule)(module, library);
    if (result != CU_OK)
        return result;
    lead(&asking, *module, library);
    return charge(&asking, key_in(&asking, library));
}

cu_result cuLibraryGetGlobal(cu_ptr *ptr, size_t *bytes, cu_library library, const char *name) {
    ASK(VGPU_cuLibraryGetGlobal, library, name, key_in(&asking, library),
        VGPU_REAL(cuLibraryGetGlobal)(ptr, bytes, library, name));
}

cu_result cuKernelGetFunction(cu_function *function, cu_function kernel) {
    struct asking asking;
    ask(&asking, VGPU_cuKernelGetFunction, kernel, "");
    cu_result result = VGPU_REAL(cuKernelGetFunction)(function, kernel);
    if (result != CU_OK)
        return result;
    cu_library library = library_of(kernel);
    cu_module module = module_of(*function);
    if (library != NULL && module != NULL)
        lead(&asking, module, library);
    return charge(&asking, key_in(&asking, library));
}
