// SPDX-License-Identifier: Apache-2.0
//
// export_table.c: the table of functions by which nvidia-smi uses NVML beside the API.
//
// No document of NVIDIA's describes it. Its id and places are as NVIDIA's own mock of
// NVML (k8s-test-infra, Apache-2.0) has published them, and as nvidia-smi of drivers 535,
// 550 and 555 was seen to ask for them here.
//
// Invariants:
// - It lists no processes: what an entry holds is known, which list is whose is not.
#include "internal.h"

#include <pthread.h>
#include <string.h>

enum { PLACES = 256, NAMED = 26, HANDLE = 81, FIRST_LIST = 213, LAST_LIST = 215 };

static void *table[PLACES] = {(void *)(PLACES * sizeof(void *))};

static nvmlReturn_t unknown(void) { return NVML_ERROR_NOT_SUPPORTED; }
static nvmlReturn_t named(void) { return NVML_SUCCESS; }  // it is told two names, and answers nothing

static nvmlReturn_t nobody(nvmlDevice_t device, unsigned int *count) {
    (void)device;
    if (!count) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

static void fill(void) {
    for (int i = 1; i < PLACES; i++) table[i] = (void *)unknown;
    table[NAMED] = (void *)named;
    table[HANDLE] = (void *)nvmlDeviceGetHandleByIndex_v2;
    for (int i = FIRST_LIST; i <= LAST_LIST; i++) table[i] = (void *)nobody;
}

__attribute__((visibility("default"))) nvmlReturn_t nvmlInternalGetExportTable(const void **out, const void *id);

nvmlReturn_t nvmlInternalGetExportTable(const void **out, const void *id) {
    static const unsigned char ours[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                           0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    static pthread_once_t filled = PTHREAD_ONCE_INIT;
    if (!out || !id) return NVML_ERROR_INVALID_ARGUMENT;
    if (memcmp(id, ours, sizeof ours) != 0) return NVML_ERROR_NOT_FOUND;
    pthread_once(&filled, fill);
    *out = table;
    return NVML_SUCCESS;
}
