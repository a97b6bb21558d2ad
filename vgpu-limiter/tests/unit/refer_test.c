// SPDX-License-Identifier: Apache-2.0
//
// refer_test COUNTERS: a handle that is made anew for memory, and memory that is opened
// again, are refused where there is no memory to remember them with: what nobody knows of
// would keep memory that isn't charged.

#include "driver.h"

#include <sys/resource.h>

#define BYTES 4096
#define HANDLES 64
#define ADDRESS ((cu_ptr)1 << 32)

static char a_context;
static int handles, opened; // that the driver has given out and not got back

static cu_result create(cu_handle *handle, size_t bytes, const struct cu_alloc_prop *prop, unsigned long long flags) {
    *handle = 512;
    handles++;
    return prop != NULL && bytes == BYTES && flags == 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result release(cu_handle handle) {
    handles--;
    return handle != 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result retain(cu_handle *handle, void *address) {
    static cu_handle last = 512;
    *handle = last += 512;
    handles++;
    return (cu_ptr)(uintptr_t)address == ADDRESS ? CU_OK : CU_INVALID_VALUE;
}
static cu_result map(cu_ptr ptr, size_t bytes, size_t offset, cu_handle handle, unsigned long long flags) {
    return ptr == ADDRESS && bytes == BYTES && offset == 0 && handle != 0 && flags == 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result unmap(cu_ptr ptr, size_t bytes) { return ptr == ADDRESS && bytes == BYTES ? CU_OK : CU_INVALID_VALUE; }
static cu_result open_handle(cu_ptr *ptr, struct cu_handle_bytes handle, unsigned flags) {
    (void)handle;
    *ptr = ADDRESS;
    opened++;
    return flags == 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result close_handle(cu_ptr ptr) {
    opened--;
    return ptr == ADDRESS ? CU_OK : CU_INVALID_VALUE;
}
static cu_result range(cu_ptr *base, size_t *bytes, cu_ptr ptr) {
    *base = ptr;
    *bytes = BYTES;
    return CU_OK;
}
static cu_result attribute(void *out, int which, cu_ptr ptr) {
    *(int *)out = 0;
    return which == CU_POINTER_DEVICE && ptr == ADDRESS ? CU_OK : CU_INVALID_VALUE;
}

void vgpu_test_step(void) {}

// Lets the process have no more memory, or what it could have.
static void set_memory(bool any) {
    static struct rlimit all;
    if (!any)
        CHECK(getrlimit(RLIMIT_AS, &all) == 0);
    struct rlimit limit = {any ? all.rlim_cur : 1, all.rlim_max};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

static uint64_t charged(void) { return vgpu_charged(&process, 0); }

static void makes_handles_anew(void) {
    struct cu_alloc_prop prop = {.location = {CU_LOCATION_DEVICE, 0}};
    cu_handle handle, more[HANDLES];
    cu_result results[HANDLES];
    int good = 0;
    CHECK(cuMemCreate(&handle, BYTES, &prop, 0) == CU_OK && cuMemMap(ADDRESS, BYTES, 0, handle, 0) == CU_OK);
    CHECK(cuMemRelease(handle) == CU_OK && handles == 0 && charged() == BYTES);
    set_memory(false);
    for (int i = 0; i < HANDLES; i++)
        results[i] = cuMemRetainAllocationHandle(&more[i], (void *)(uintptr_t)ADDRESS);
    set_memory(true);
    for (int i = 0; i < HANDLES; i++) {
        CHECK(results[i] == CU_OK || results[i] == CU_OUT_OF_MEMORY);
        good += results[i] == CU_OK;
    }
    CHECK(good < HANDLES && handles == good);
    CHECK(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ADDRESS) == CU_OK);
    CHECK(cuMemUnmap(ADDRESS, BYTES) == CU_OK);
    for (int i = 0; i < HANDLES; i++)
        CHECK(results[i] != CU_OK || cuMemRelease(more[i]) == CU_OK);
    CHECK(charged() == BYTES && handles == 1);
    CHECK(cuMemRelease(handle) == CU_OK && charged() == 0);
}

static void opens_again(void) {
    struct cu_handle_bytes bytes = {{0}};
    cu_ptr ptr;
    CHECK(cuIpcOpenMemHandle_v2(&ptr, bytes, 0) == CU_OK && charged() == BYTES);
    set_memory(false);
    cu_result result = cuIpcOpenMemHandle_v2(&ptr, bytes, 0);
    set_memory(true);
    CHECK(result == CU_OUT_OF_MEMORY && opened == 1 && charged() == BYTES);
    CHECK(cuIpcOpenMemHandle_v2(&ptr, bytes, 0) == CU_OK && cuIpcCloseMemHandle(ptr) == CU_OK && charged() == BYTES);
    CHECK(cuIpcCloseMemHandle(ptr) == CU_OK && charged() == 0 && opened == 0);
}

int main(int argc, char **argv) {
    STAND_IN(cuMemCreate, create);
    STAND_IN(cuMemRelease, release);
    STAND_IN(cuMemRetainAllocationHandle, retain);
    STAND_IN(cuMemMap, map);
    STAND_IN(cuMemUnmap, unmap);
    STAND_IN(cuIpcOpenMemHandle_v2, open_handle);
    STAND_IN(cuIpcCloseMemHandle, close_handle);
    STAND_IN(cuMemGetAddressRange_v2, range);
    STAND_IN(cuPointerGetAttribute, attribute);
    current = (cu_ctx)(void *)&a_context;
    attach(argc >= 2 ? argv[1] : NULL, 1 << 20, 0);
    makes_handles_anew();
    opens_again();
    return 0;
}
