// SPDX-License-Identifier: Apache-2.0
//
// overhead_test COUNTERS: what another thread allocates and frees while NVML is asked is
// never taken for a module's or a context's.

#include "driver.h"

#include <pthread.h>
#include <semaphore.h>

#define MIB (UINT64_C(1) << 20)
#define READINGS 16 // of which the least counts if something has come and gone in each

static char a_context;
static uint64_t on_device;   // what the process has there
static cu_ptr brief;         // the other thread's memory
static int readings;
static void (*before)(void); // what that does just before NVML looks, and just after
static void (*after)(void);

static cu_result create_context(cu_ctx *ctx, unsigned flags, cu_device device) {
    static uintptr_t last = 1 << 20;
    *ctx = (cu_ctx)(last += 512);
    return flags == 0 && device == 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result allocate(cu_ptr *ptr, size_t bytes) {
    *ptr = UINT64_C(1) << 40;
    on_device += bytes;
    return CU_OK;
}
static cu_result release(cu_ptr ptr) {
    on_device -= 3 * MIB;
    return ptr != 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result load(cu_module *module, const void *image) {
    static uintptr_t last = 1 << 20;
    *module = (cu_module)(last += 512);
    on_device += MIB;
    return image != NULL ? CU_OK : CU_INVALID_VALUE;
}
static cu_result unload(cu_module module) {
    on_device -= MIB;
    return module != NULL ? CU_OK : CU_INVALID_VALUE;
}

// A pool that grows by 32 MiB for one, in a call that lasts until it is told.
static sem_t grown, told;
static pthread_t user;
static char a_pool;
static uint64_t reserved;
static cu_result get_pool(cu_pool *pool, cu_device device) {
    *pool = (cu_pool)(void *)&a_pool;
    return device == 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result get_reserved(cu_pool pool, int attribute, void *value) {
    *(uint64_t *)value = reserved;
    return pool != NULL && attribute != 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result allocate_async(cu_ptr *ptr, size_t bytes, cu_stream stream) {
    *ptr = UINT64_C(2) << 40;
    reserved = 32 * MIB;
    on_device += reserved;
    sem_post(&grown);
    sem_wait(&told);
    return bytes == MIB && stream == NULL ? CU_OK : CU_INVALID_VALUE;
}
static void *uses_pool(void *unused) {
    cu_ptr ptr;
    current = (cu_ctx)(void *)&a_context;
    CHECK(cuMemAllocAsync(&ptr, MIB, NULL) == CU_OK);
    return unused;
}
static nv_result list(nv_device device, unsigned *count, struct nv_process_v2 *processes) {
    readings++;
    if (before != NULL)
        before();
    *processes = (struct nv_process_v2){.pid = (uint32_t)getpid(), .used = on_device};
    *count = 1;
    if (after != NULL)
        after();
    return device != NULL ? NV_OK : NV_MEMORY;
}

void vgpu_test_step(void) {}

static void takes(void) { CHECK(cuMemAlloc_v2(&brief, 3 * MIB) == CU_OK); }
static void gives(void) { CHECK(cuMemFree_v2(brief) == CU_OK); }
static void takes_once(void) {
    takes();
    before = after = NULL;
}
static void gives_once(void) {
    gives();
    before = after = NULL;
}
static void takes_again(void) {
    takes();
    gives();
    takes_once();
}
// In each reading but one it has something just then.
static void takes_mostly(void) {
    if (readings != 7)
        takes();
}
static void gives_mostly(void) {
    if (readings == 7)
        takes();
    gives();
}

// What it has charged in the first reading isn't on the device before the next.
static void comes_later(void) {
    on_device += 3 * MIB;
    before = after = NULL;
}
static void is_to_come(void) {
    on_device -= 3 * MIB;
    after = comes_later;
}

// The second time that NVML is asked the call has come back.
static void comes_back(void) {
    if (readings == 1)
        return;
    sem_post(&told);
    pthread_join(user, NULL);
    before = NULL;
}

// What is charged for a module of one MiB, beside what the other thread has in the end.
static uint64_t charged(uint64_t others) {
    cu_module module;
    readings = 0;
    CHECK(cuModuleLoadData(&module, "") == CU_OK);
    before = after = NULL;
    CHECK(on_device == MIB + others);
    uint64_t bytes = vgpu_charged(&process, 0) - others;
    CHECK(cuModuleUnload(module) == CU_OK);
    if (others % (32 * MIB) != 0)
        gives();
    CHECK(on_device == reserved && vgpu_charged(&process, 0) == reserved);
    return bytes;
}

int main(int argc, char **argv) {
    STAND_IN(cuCtxCreate_v2, create_context);
    STAND_IN(cuMemAlloc_v2, allocate);
    STAND_IN(cuMemFree_v2, release);
    STAND_IN(cuMemAllocAsync, allocate_async);
    STAND_IN(cuDeviceGetMemPool, get_pool);
    STAND_IN(cuDeviceGetDefaultMemPool, get_pool);
    STAND_IN(cuMemPoolGetAttribute, get_reserved);
    STAND_IN(cuModuleLoadData, load);
    STAND_IN(cuModuleUnload, unload);
    STAND_IN(nvmlDeviceGetComputeRunningProcesses_v3, list);
    process.nvml.good = true;
    process.nvml.device[0] = (nv_device)(void *)&a_context;
    current = (cu_ctx)(void *)&a_context;
    attach(argc >= 2 ? argv[1] : NULL, 100 * MIB, 0);

    CHECK(charged(0) == MIB && readings == 1);
    takes();
    after = gives_once;
    CHECK(charged(0) == MIB && readings == 1);
    before = takes_once;
    CHECK(charged(3 * MIB) == MIB && readings == 1);
    before = takes, after = gives_once; // it has come and gone: once more
    CHECK(charged(0) == MIB && readings == 2);
    after = takes_again; // of no more weight than a reading in which it has not
    CHECK(charged(3 * MIB) == MIB && readings == 2);
    before = takes_mostly, after = gives_mostly;
    CHECK(charged(0) == MIB && readings == READINGS);

    cu_ctx ctx; // takes nothing; the second one is measured
    CHECK(cuCtxCreate_v2(&ctx, 0, 0) == CU_OK);
    takes();
    after = gives_once;
    readings = 0;
    CHECK(cuCtxCreate_v2(&ctx, 0, 0) == CU_OK && vgpu_charged(&process, 0) == 0 && readings == 1);

    sem_init(&grown, 0, 0);
    sem_init(&told, 0, 0);
    CHECK(pthread_create(&user, NULL, uses_pool, NULL) == 0 && sem_wait(&grown) == 0);
    before = comes_back;
    CHECK(charged(32 * MIB) == MIB && readings == 2);

    // Where a module is what the difference grows by, nor is that too little before.
    atomic_store(&process.nvml.managed, true);
    after = takes_once;
    CHECK(charged(3 * MIB + reserved) == MIB && readings == 4);
    takes();
    before = is_to_come;
    CHECK(charged(3 * MIB + reserved) == MIB && readings == 4);
    before = takes_once; // nor too much
    CHECK(charged(3 * MIB + reserved) == MIB && readings == 3);
    return 0;
}
