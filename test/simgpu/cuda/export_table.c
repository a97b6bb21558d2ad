// SPDX-License-Identifier: Apache-2.0
//
// export_table.c: the tables of functions by which NVIDIA's runtime library (libcudart)
// uses its driver beside the API.
//
// No document of NVIDIA's describes them. Ids, places and arguments are as the ZLUDA
// project (Apache-2.0, dark_api) has published them; which of them the runtimes of CUDA
// 11.8, 12.4 and 12.5 use was seen here, by what they asked this library for. Only
// those are here, and nobody's code is.
//
// Invariants:
// - Who stands in front of the API does not see these calls, as with the real driver.
// - A place that no runtime was seen to use answers NOT_SUPPORTED.
#include "private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLACES 10

// The first place of most tables holds their size.
#define SIZE(n) ((void *)(uintptr_t)((n) * sizeof(void *)))

static CUresult unknown(void) { return CUDA_ERROR_NOT_SUPPORTED; }

// How 11.8 loads the modules of a program; 12 uses libraries.
static CUresult load(CUmodule *module, const void *fatbin, void *a, void *b, unsigned c) {
    (void)a, (void)b, (void)c;
    return cuModuleLoadFatBinary(module, fatbin);
}

// The handle alone: who asks retains the context before it is used.
static CUresult primary(CUcontext *ctx, CUdevice dev) {
    struct ordinal *o;
    NEED(ctx);
    CHECK(need_device(dev, &o));
    *ctx = context_primary(dev);
    return CUDA_SUCCESS;
}

// 11.8 says which modules it is about to unload, and everybody asks whether something
// is wrong.
static CUresult nothing(void) { return CUDA_SUCCESS; }

static void *interface[PLACES] = {
    SIZE(10),
    [2] = (void *)primary,
    [6] = (void *)load,
    [7] = (void *)nothing,
};

// Profilers' hooks; there is no profiler.

static void *words[1024], *flags[2];

static void words_at(void **at, size_t *n) { *at = words, *n = 1024; }
static void flags_at(void **at, size_t *n) { *at = flags, *n = 14; }

static void *hooks[PLACES] = {SIZE(7), [2] = (void *)words_at, [6] = (void *)flags_at};

static void *thread_storage[PLACES] = {SIZE(4)};

// What the runtime keeps with a context, by its own keys, and is told the end of.

struct kept {
    CUcontext ctx;
    void *key, *value;
    void (*end)(CUcontext, void *, void *);
    struct kept *next;
};

static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;
static struct kept *kept;

// The place of what is kept, or of the end of the list.
static struct kept **place(CUcontext ctx, const void *key) {
    struct kept **k = &kept;
    while (*k && ((*k)->ctx != ctx || (key && (*k)->key != key))) k = &(*k)->next;
    return k;
}

static CUresult keep(CUcontext ctx, void *key, void *value, void (*end)(CUcontext, void *, void *)) {
    if (!ctx) CHECK(need_context(&ctx));
    pthread_mutex_lock(&keeping);
    struct kept **k = place(ctx, key);
    if (!*k) *k = calloc(1, sizeof **k);
    struct kept *it = *k;
    if (it) it->ctx = ctx, it->key = key, it->value = value, it->end = end;
    pthread_mutex_unlock(&keeping);
    return it ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// take removes the first of a context's, under this key or any.
static struct kept *take(CUcontext ctx, const void *key) {
    pthread_mutex_lock(&keeping);
    struct kept **k = place(ctx, key), *it = *k;
    if (it) *k = it->next;
    pthread_mutex_unlock(&keeping);
    return it;
}

static CUresult forget(CUcontext ctx, void *key) {
    if (!ctx) CHECK(need_context(&ctx));
    struct kept *it = take(ctx, key);
    free(it);
    return it ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult find(void **value, CUcontext ctx, void *key) {
    NEED(value && key);
    if (!ctx) CHECK(need_context(&ctx));
    pthread_mutex_lock(&keeping);
    struct kept *it = *place(ctx, key);
    if (it) *value = it->value;
    pthread_mutex_unlock(&keeping);
    return it ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void private_end(CUcontext ctx) {
    struct kept *it;
    while ((it = take(ctx, NULL))) {
        if (it->end) it->end(ctx, it->key, it->value);
        free(it);
    }
}

static void *context_storage[PLACES] = {(void *)keep, (void *)forget, (void *)find};

static CUresult context_checked(CUcontext ctx, uint32_t *bits, const void **what) {
    (void)ctx, (void)what;
    NEED(bits);
    *bits = 0;
    return CUDA_SUCCESS;
}

static void *checks[PLACES] = {SIZE(4), [2] = (void *)context_checked, [3] = (void *)nothing};

static CUresult integrity(uint32_t version, uint64_t seconds, void *answer);

static void *integrity_table[PLACES] = {SIZE(3), (void *)integrity};

static CUresult integrity(uint32_t version, uint64_t seconds, void *answer) {
    // Asked for the first two kinds of answer, the driver always says the same.
    static const uint64_t fixed[2][2] = {{0x3341181c03cb675c, 0x8ed383aa1f4cd1e8},
                                         {0x1841181c03cb675c, 0x8ed383aa1f4cd1e8}};
    struct integrity_device list[SIM_MAX_DEVICES] = {0};
    int driver;
    NEED(answer);
    if (version % 10 < 2) {
        memcpy(answer, fixed[version % 10], sizeof fixed[0]);
        return CUDA_SUCCESS;
    }
    CHECK(cuDriverGetVersion(&driver));
    struct integrity asked = {
        .driver_version = (uint32_t)driver,
        .runtime_version = version,
        .process = (uint32_t)getpid(),
        .thread = (uint32_t)pthread_self(),
        .interface = interface,
        .table = integrity_table,
        .function = integrity_table[1],
        .seconds = seconds,
    };
    for (int d = 0; d < ordinal_count; d++) {
        CHECK(cuDeviceGetUuid_v2(&list[d].uuid, d));
        CHECK(cuDeviceGetAttribute(&list[d].domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, d));
        CHECK(cuDeviceGetAttribute(&list[d].bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, d));
        CHECK(cuDeviceGetAttribute(&list[d].device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, d));
    }
    integrity_answer(&asked, list, (unsigned)ordinal_count, answer);
    return CUDA_SUCCESS;
}

static const struct {
    unsigned char id[16];
    void **table;
    unsigned places;
} tables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, interface, 10},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, thread_storage, 4},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, hooks, 7},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, context_storage, 4},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2}, integrity_table, 3},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa, 0x7e}, checks, 4},
};
#define TABLES (sizeof tables / sizeof *tables)

static void fill(void) {
    for (unsigned t = 0; t < TABLES; t++)
        for (unsigned i = 0; i < tables[t].places; i++)
            if (!tables[t].table[i]) tables[t].table[i] = (void *)unknown;
}

CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    static pthread_once_t filled = PTHREAD_ONCE_INIT;
    NEED(table && id);
    pthread_once(&filled, fill);
    *table = NULL;
    for (unsigned t = 0; t < TABLES && !*table; t++)
        if (memcmp(tables[t].id, id, sizeof tables[t].id) == 0) *table = tables[t].table;
    return *table ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
