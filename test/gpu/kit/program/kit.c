// SPDX-License-Identifier: Apache-2.0
//
// kit-program KERNELS COMMAND [ARGUMENT...]: what the GPU kit has CUDA programs do. It
// prints one JSON object at the end; {"error":CALL,"result":N} and exit code 1 where a
// call failed that must not. It links nothing of the driver. See main for the commands.
#include "kit.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEFINE(name) __typeof__(name) *p_##name;
NEEDED(DEFINE)
OPTIONAL(DEFINE)

int multiprocessors;
static const char *kernels;

void (*on_failure)(int result);

void fail(const char *call, int result) {
    if (on_failure) on_failure(result);
    printf("{\"error\":\"%s\",\"result\":%d}\n", call, result);
    exit(1);
}

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void find(void) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) fail("dlopen libcuda.so.1", 0);
#define FIND(name) *(void **)&p_##name = dlsym(lib, #name);
    NEEDED(FIND)
    OPTIONAL(FIND)
#define CHECK(name) \
    if (!p_##name) fail("dlsym " #name, 0);
    NEEDED(CHECK)
}

void use(int device) {
    static bool found;
    CUcontext context;
    CUdevice d;
    if (!found) {
        find();
        MUST(cuInit, 0);
        found = true;
    }
    MUST(cuDeviceGet, &d, device);
    MUST(cuDevicePrimaryCtxRetain, &context, d);
    MUST(cuCtxSetCurrent, context);
    MUST(cuDeviceGetAttribute, &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d);
}

size_t free_bytes(void) {
    size_t bytes, total;
    MUST(cuMemGetInfo_v2, &bytes, &total);
    return bytes;
}

const char *image(void) {
    static _Alignas(16) char text[1 << 16]; // a fat binary is read in words
    FILE *f = text[0] ? NULL : fopen(kernels, "r");
    if (f) {
        size_t n = fread(text, 1, sizeof text - 1, f);
        text[n] = 0;
        fclose(f);
    }
    if (!text[0]) fail("reading the kernels", 0);
    return text;
}

CUfunction kernel(const char *name) {
    static CUmodule module;
    CUfunction f;
    if (!module) MUST(cuModuleLoadData, &module, image());
    MUST(cuModuleGetFunction, &f, module, name);
    return f;
}

static void info(void) {
    int version, count;
    find();
    MUST(cuInit, 0);
    MUST(cuDriverGetVersion, &version);
    MUST(cuDeviceGetCount, &count);
    printf("{\"cuda\":%d,\"devices\":[", version);
    for (int i = 0; i < count; i++) {
        char name[128];
        CUuuid uuid;
        CUdevice d;
        size_t total;
        int mode, major, minor, managed;
        MUST(cuDeviceGet, &d, i);
        MUST(cuDeviceGetName, name, sizeof name, d);
        MUST(cuDeviceGetUuid, &uuid, d);
        MUST(cuDeviceTotalMem_v2, &total, d);
        MUST(cuDeviceGetAttribute, &mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, d);
        MUST(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d);
        MUST(cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d);
        MUST(cuDeviceGetAttribute, &managed, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, d);
        use(i);
        printf("%s{\"index\":%d,\"name\":\"%s\",\"uuid\":\"GPU-", i ? "," : "", i, name);
        for (int b = 0; b < 16; b++)
            printf("%s%02x", b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "", (unsigned char)uuid.bytes[b]);
        printf("\",\"total\":%zu,\"free\":%zu,\"multiprocessors\":%d,\"compute_mode\":%d,"
               "\"capability\":\"%d.%d\",\"concurrent_managed\":%d}",
               total, free_bytes(), multiprocessors, mode, major, minor, managed);
    }
    printf("]}\n");
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *command = argc > 2 ? argv[2] : "";
    double a = argc > 3 ? atof(argv[3]) : 0, b = argc > 4 ? atof(argv[4]) : 0;
    kernels = argc > 1 ? argv[1] : "";
#define ON(name, expression)                 \
    if (strcmp(command, name) == 0) {        \
        expression;                          \
        return 0;                            \
    }
    ON("info", info())                                // the devices, as CUDA shows them
    ON("calibrate", calibrate())                      // iterations of kit_work in a microsecond
    ON("paths", paths((size_t)a * MIB))               // each way to memory, to its end or MOST MiB
    ON("take", take((size_t)a * MIB))                 // MOST MiB, kept until the input ends
    ON("processes", take_in_processes((int)a, (size_t)b * MIB)) // N at a time, MOST MiB each
    ON("retake", die_and_retake((size_t)a * MIB))     // what a killed child held
    ON("freed", freed_after((int)a, (size_t)b * MIB)) // kill PID and wait for MIB
    ON("peers", peers())                              // device 0 and 1
    ON("load", load(a, (unsigned long long)b, argc > 5 ? argv[5] : "kernel", argc > 6 ? (unsigned)atoi(argv[6]) : 0)) // SECONDS ITERATIONS KIND AHEAD
    ON("kinds", kinds())                              // each way to launch, with its result
    ON("cost", cost(argc > 3 ? argv[3] : ""))         // ns of one CALL
    ON("nvml", nvml_facts())                          // the devices and processes, as NVML shows them
    ON("shares", nvml_shares(a))                      // how busy each process was, in SECONDS
    fprintf(stderr, "usage: kit-program KERNELS COMMAND [ARGUMENT...]\n");
    return 2;
}
