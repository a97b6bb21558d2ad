// SPDX-License-Identifier: Apache-2.0
//
// module_test COUNTERS: what is asked for again, of the same handle in the same context,
// isn't measured; what may load something is.

#include "check.h"
#include "memory/memory.h"

#include <string.h>

static struct vgpu_process process;
static char contexts[2], a_module;
static cu_ctx current;
static int looks; // at the driver's free memory

static cu_result create_context(cu_ctx *ctx, unsigned flags, cu_device device) {
    static int made;
    *ctx = (cu_ctx)(void *)&contexts[made++ % 2];
    return flags == 0 && device == 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result destroy_context(cu_ctx ctx) { return ctx != NULL ? CU_OK : CU_INVALID_VALUE; }
static cu_result get_current(cu_ctx *ctx) {
    *ctx = current;
    return CU_OK;
}
static cu_result get_device(cu_device *device) {
    *device = 0;
    return CU_OK;
}
static cu_result get_info(size_t *free_bytes, size_t *total) {
    looks++;
    *free_bytes = *total = 1 << 20;
    return CU_OK;
}
static cu_result load(cu_module *module, const void *image) {
    *module = (cu_module)(void *)&a_module;
    return image != NULL ? CU_OK : CU_INVALID_VALUE;
}
static cu_result unload(cu_module module) { return module != NULL ? CU_OK : CU_INVALID_VALUE; }
static cu_result get_function(cu_function *function, cu_module module, const char *name) {
    *function = (cu_function)(void *)&a_module;
    return module != NULL && strcmp(name, "none") != 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result get_global(cu_ptr *ptr, size_t *bytes, cu_module module, const char *name) {
    *ptr = *bytes = 1;
    return module != NULL && *name != 0 ? CU_OK : CU_INVALID_VALUE;
}

void vgpu_test_step(void) {}

// Whether the driver is asked for its free memory, before and after, for this function.
static bool measures(cu_module module, const char *name, cu_result expected) {
    cu_function function;
    looks = 0;
    CHECK(cuModuleGetFunction(&function, module, name) == expected);
    return looks != 0;
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    atomic_store(&vgpu_reals[VGPU_cuCtxCreate_v2], (void *)create_context);
    atomic_store(&vgpu_reals[VGPU_cuCtxDestroy_v2], (void *)destroy_context);
    atomic_store(&vgpu_reals[VGPU_cuCtxGetCurrent], (void *)get_current);
    atomic_store(&vgpu_reals[VGPU_cuCtxGetDevice], (void *)get_device);
    atomic_store(&vgpu_reals[VGPU_cuMemGetInfo_v2], (void *)get_info);
    atomic_store(&vgpu_reals[VGPU_cuModuleLoadData], (void *)load);
    atomic_store(&vgpu_reals[VGPU_cuModuleUnload], (void *)unload);
    atomic_store(&vgpu_reals[VGPU_cuModuleGetFunction], (void *)get_function);
    atomic_store(&vgpu_reals[VGPU_cuModuleGetGlobal_v2], (void *)get_global);
    CHECK(vgpu_region_join(argv[1], 1, &process.region) == NULL);
    process.limits.device_count = 1;
    process.limits.device[0].memory_bytes = 1 << 20;
    process.device_count = 1;
    process.nvml.tries = 1000; // and isn't there
    memset(process.index, -1, sizeof process.index);
    process.index[0] = 0;
    atomic_store(&process.attached, true);
    atomic_store(&vgpu_process_page, &process);

    cu_ctx first, second;
    cu_module module;
    cu_ptr ptr;
    size_t bytes;
    CHECK(cuCtxCreate_v2(&first, 0, 0) == CU_OK && cuCtxCreate_v2(&second, 0, 0) == CU_OK);
    current = first;
    CHECK(cuModuleLoadData(&module, "") == CU_OK);
    CHECK(measures(module, "f", CU_OK));
    CHECK(!measures(module, "f", CU_OK) && !measures(module, "f", CU_OK));
    CHECK(measures(module, "g", CU_OK));
    CHECK(!measures(module, "f", CU_OK) && !measures(module, "g", CU_OK));
    looks = 0; // a variable of a function's name
    CHECK(cuModuleGetGlobal_v2(&ptr, &bytes, module, "f") == CU_OK && looks == 2);
    CHECK(cuModuleGetGlobal_v2(&ptr, &bytes, module, "f") == CU_OK && looks == 2);
    // What isn't found may come to be.
    CHECK(measures(module, "none", CU_INVALID_VALUE) && measures(module, "none", CU_INVALID_VALUE));
    current = second; // of a library it is another module there
    CHECK(measures(module, "f", CU_OK) && !measures(module, "f", CU_OK));
    current = first;
    CHECK(!measures(module, "f", CU_OK));
    // Another module, or another context's, that has the handle of one that is gone.
    CHECK(cuModuleUnload(module) == CU_OK && cuModuleLoadData(&module, "") == CU_OK);
    CHECK(measures(module, "f", CU_OK) && !measures(module, "f", CU_OK));
    CHECK(cuCtxDestroy_v2(second) == CU_OK);
    CHECK(measures(module, "f", CU_OK));
    return 0;
}
