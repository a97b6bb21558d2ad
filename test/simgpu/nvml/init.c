// SPDX-License-Identifier: Apache-2.0
//
// init.c: start, end and versions.
//
// Invariants:
// - Initialisation is counted; after the last shutdown every call answers
//   UNINITIALIZED.
// - No state file is a machine without the driver: DRIVER_NOT_LOADED.
// - A library beside a kernel module of another version does nothing but say so.
#define _GNU_SOURCE
#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct sim_state *nv;

static pthread_mutex_t count_mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned count;

// The library's version ends with that of the driver that it came with.
bool mismatched(const struct sim_state *s) {
    const char *version = strchr(s->nvml_version, '.');
    return !version || strcmp(version + 1, s->driver_version) != 0;
}

static nvmlReturn_t start(void) {
    nvmlReturn_t ret = NVML_SUCCESS;
    pthread_mutex_lock(&count_mutex);
    struct sim_state *s = count ? nv : sim_open();
    if (s && mismatched(s)) {
        ret = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    } else if (s) {
        nv = s;
        count++;
    } else {
        ret = NVML_ERROR_DRIVER_NOT_LOADED;
    }
    pthread_mutex_unlock(&count_mutex);
    return ret;
}

nvmlReturn_t nvmlInit(void) { return start(); }
nvmlReturn_t nvmlInit_v2(void) { return start(); }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    return start();
}

nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t ret = NVML_SUCCESS;
    pthread_mutex_lock(&count_mutex);
    if (!count)
        ret = NVML_ERROR_UNINITIALIZED;
    else if (--count == 0)
        nv = NULL;
    pthread_mutex_unlock(&count_mutex);
    return ret;
}

bool is_root(void) { return geteuid() == 0; }

nvmlReturn_t copy_text(char *to, unsigned length, const char *from) {
    NEED(to);
    if (strlen(from) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    return nv ? copy_text(version, length, nv->driver_version) : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    return nv ? copy_text(version, length, nv->nvml_version) : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    NEED(version);
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    *version = nv->cuda_version;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length) {
    NEED(info);
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    if (info->version != nvmlSystemDriverBranchInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    char branch[16];
    snprintf(branch, sizeof branch, "r%.3s_00", nv->driver_version);
    return copy_text(info->branch, length < sizeof info->branch ? length : sizeof info->branch,
                     branch);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    char path[64], full[4096] = "";
    NEED(name && length);
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *f = fopen(path, "re");
    if (!f) return NVML_ERROR_NOT_FOUND;
    size_t n = fread(full, 1, sizeof full - 1, f);
    fclose(f);
    full[n] = 0;
    snprintf(name, length, "%s", full);
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    static const char *const texts[] = {
        [NVML_SUCCESS] = "Success",
        [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
        [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
        [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
        [NVML_ERROR_NO_PERMISSION] = "Insufficient Permissions",
        [NVML_ERROR_ALREADY_INITIALIZED] = "Already Initialized",
        [NVML_ERROR_NOT_FOUND] = "Not Found",
        [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
        [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
        [NVML_ERROR_TIMEOUT] = "Timeout",
        [NVML_ERROR_LIBRARY_NOT_FOUND] = "NVML Shared Library Not Found",
        [NVML_ERROR_FUNCTION_NOT_FOUND] = "Function Not Found",
        [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
        [NVML_ERROR_RESET_REQUIRED] = "GPU requires reset",
        [NVML_ERROR_OPERATING_SYSTEM] = "Blocked by the operating system",
        [NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "Driver/library version mismatch",
        [NVML_ERROR_IN_USE] = "In use by another client",
        [NVML_ERROR_MEMORY] = "Insufficient Memory",
        [NVML_ERROR_NO_DATA] = "No data",
        [NVML_ERROR_INSUFFICIENT_RESOURCES] = "Insufficient Resources",
        [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
        [NVML_ERROR_INVALID_STATE] = "Invalid state",
    };
    bool known = (unsigned)result < sizeof texts / sizeof *texts && texts[result];
    return known ? texts[result] : "Unknown Error";
}
