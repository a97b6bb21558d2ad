// SPDX-License-Identifier: Apache-2.0
//
// module_test COUNTERS: what is asked for again, of the same handle in the same context,
// isn't measured; what may load something is.

#include "driver.h"

#include <string.h>

static char contexts[2], a_module;
static int looks; // at the driver's free memory

static cu_result create_context(cu_ctx *ctx, unsigned flags, cu_device device) {
    static int made;
    *ctx = (cu_ctx)(void *)&contexts[made++ % 2];
    return flags == 0 && device == 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result destroy_context(cu_ctx ctx) { return ctx != NULL ? CU_OK : CU_INVALID_VALUE; }
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
    STAND_IN(cuCtxCreate_v2, create_context);
    STAND_IN(cuCtxDestroy_v2, destroy_context);
    STAND_IN(cuMemGetInfo_v2, get_info);
    STAND_IN(cuModuleLoadData, load);
    STAND_IN(cuModuleUnload, unload);
    STAND_IN(cuModuleGetFunction, get_function);
    STAND_IN(cuModuleGetGlobal_v2, get_global);
    process.nvml.tries = 1000; // and isn't there
    attach(argc >= 2 ? argv[1] : NULL, 1 << 20, 0);

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
