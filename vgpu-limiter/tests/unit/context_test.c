// SPDX-License-Identifier: Apache-2.0
//
// context_test COUNTERS: a driver that gives out the handles of what it has destroyed at
// once. While a context's end is still being accounted for, another thread has the next
// context, which has its handle, an array in it, which has an array's handle, and memory
// under that: only what was the old context's is uncharged.

#include "driver.h"

#define MIB (UINT64_C(1) << 20)

static char a_context, an_array;
static bool destroyed; // by the driver
static bool is_last;   // there is no other thread any more

static cu_result create_context(cu_ctx *ctx, unsigned flags, cu_device device) {
    *ctx = (cu_ctx)(void *)&a_context;
    return flags == 0 && device == 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result destroy_context(cu_ctx ctx) {
    destroyed = true;
    return ctx == (cu_ctx)(void *)&a_context ? CU_OK : CU_INVALID_VALUE;
}
static cu_result create_array(cu_array *array, const struct cu_array3d_desc *desc) {
    *array = (cu_array)(void *)&an_array;
    return desc != NULL ? CU_OK : CU_INVALID_VALUE;
}
static cu_result create(cu_handle *handle, size_t bytes, const struct cu_alloc_prop *prop, unsigned long long flags) {
    static cu_handle last;
    *handle = ++last;
    return bytes != 0 && prop != NULL && flags == 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result release(cu_handle handle) { return handle != 0 ? CU_OK : CU_INVALID_VALUE; }
static cu_result map_arrays(struct cu_array_map *list, unsigned count, cu_stream stream) {
    return list != NULL && count == 1 && stream == NULL ? CU_OK : CU_INVALID_VALUE;
}

static void stand_in(void) {
    STAND_IN(cuCtxCreate_v2, create_context);
    STAND_IN(cuCtxDestroy_v2, destroy_context);
    STAND_IN(cuArray3DCreate_v2, create_array);
    STAND_IN(cuMemCreate, create);
    STAND_IN(cuMemRelease, release);
    STAND_IN(cuMemMapArrayAsync, map_arrays);
}

// Maps this much memory under some of the array's tiles, to which nothing else refers
// then, or unmaps what is there.
static void map(cu_array array, unsigned first, unsigned tiles, uint64_t bytes) {
    struct cu_alloc_prop prop = {.location = {CU_LOCATION_DEVICE, 0}};
    struct cu_array_map map = {.resource_type = CU_RESOURCE_ARRAY, .resource = array, .device_mask = 1};
    map.texels.at[0] = first * 64;
    map.texels.extent[0] = tiles * 64;
    map.texels.extent[1] = map.texels.extent[2] = 1;
    if (bytes != 0) {
        map.operation = CU_OPERATION_MAP;
        CHECK(cuMemCreate(&map.handle, bytes, &prop, 0) == CU_OK);
    }
    CHECK(cuMemMapArrayAsync(&map, 1, NULL) == CU_OK);
    if (bytes != 0)
        CHECK(cuMemRelease(map.handle) == CU_OK);
}

// A context with `mapped` under an array, and `leaving` that was: it counts as well.
static cu_ctx begin(uint64_t mapped, uint64_t leaving) {
    struct cu_array3d_desc desc = {.width = 1024, .height = 64, .format = 0x20, .channels = 4, .flags = CU_ARRAY_SPARSE};
    cu_ctx ctx;
    cu_array array;
    CHECK(cuCtxCreate_v2(&ctx, 0, 0) == CU_OK);
    CHECK(cuArray3DCreate_v2(&array, &desc) == CU_OK);
    map(array, 0, 8, mapped);
    map(array, 8, 2, leaving);
    map(array, 8, 2, 0);
    return ctx;
}

// The other thread, as soon as it needn't wait for the one that destroys a context.
void vgpu_test_step(void) {
    if (!destroyed || is_last || process.contexts.dying_lock.state != 0 || process.vmm.lock.state != 0)
        return;
    destroyed = false;
    begin(8 * MIB, 16 * MIB);
}

int main(int argc, char **argv) {
    stand_in();
    current = (cu_ctx)(void *)&a_context;
    attach(argc >= 2 ? argv[1] : NULL, 100 * MIB, 0);

    cu_ctx ctx = begin(1 * MIB, 2 * MIB);
    CHECK(vgpu_charged(&process, 0) == 3 * MIB);
    CHECK(cuCtxDestroy_v2(ctx) == CU_OK);
    CHECK(!destroyed); // the other thread has been there
    CHECK(vgpu_charged(&process, 0) == 24 * MIB);
    CHECK(cuCtxDestroy_v2(ctx) == CU_OK);
    CHECK(vgpu_charged(&process, 0) == 24 * MIB); // that of the third one
    is_last = true;
    CHECK(cuCtxDestroy_v2(ctx) == CU_OK && vgpu_charged(&process, 0) == 0);
    return 0;
}
