// SPDX-License-Identifier: Apache-2.0
//
// watch MIB...: takes one MiB on each device, of which the container has so many, and
// looks at them by every function that tells memory or processes. Standard input says
// what to do:
//
//   watch N   look N times: the answer is how often something was impossible, what
//             was first, and which processes were listed
//   rest      what is used of each device: by CUDA, by NVML, by all processes listed

#include "cuda.h"
#include "views.h"

#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define MIB ((unsigned long long)1 << 20)
#define ROOM 64 // processes in a list

struct process_v1 {
    unsigned pid;
    unsigned long long used;
};
struct detail {
    unsigned pid;
    unsigned long long used;
    unsigned instances[2];
    unsigned long long used_protected;
};
struct detail_list {
    unsigned version, mode, count;
    struct detail *processes;
};
struct utilization {
    unsigned gpu, memory;
};

static unsigned long long limit[16];
static int devices;
static CUcontext context[16];
static void *handle[16];
static unsigned problems, pids[256], pid_count;
static char first[256];

__attribute__((format(printf, 2, 3))) static void want(bool good, const char *format, ...) {
    va_list rest;
    if (good || problems++ != 0)
        return;
    va_start(rest, format);
    vsnprintf(first, sizeof first, format, rest);
    va_end(rest);
}

static void seen(unsigned pid) {
    for (unsigned i = 0; i < pid_count; i++)
        if (pids[i] == pid)
            return;
    if (pid_count < 256)
        pids[pid_count++] = pid;
}

static unsigned long long used_by_cuda(int d) {
    size_t free_bytes = 1, total = 0, all = 0;
    cuCtxSetCurrent(context[d]);
    int result = cuMemGetInfo_v2(&free_bytes, &total);
    want(result == 0 && total == limit[d] && free_bytes <= total - MIB, "cuMemGetInfo(%d): %d, %zu of %zu", d, result, free_bytes, total);
    result = cuDeviceTotalMem_v2(&all, d);
    want(result == 0 && all == limit[d], "cuDeviceTotalMem(%d): %d, %zu", d, result, all);
    return total - free_bytes;
}

static unsigned long long used_by_nvml(int d) {
    struct memory m = {0};
    struct memory_v2 m2 = {.version = sizeof m2 | 2u << 24};
    int result = NVML("DeviceGetMemoryInfo", handle[d], &m);
    want(result == 0 && m.total == limit[d] && m.used <= m.total && m.used >= MIB && m.used + m.free == m.total,
         "memory of %d: %d, %llu used, %llu free of %llu", d, result, m.used, m.free, m.total);
    result = NVML("DeviceGetMemoryInfo_v2", handle[d], &m2);
    want(result == 0 && m2.total == limit[d] && m2.used <= m2.total && m2.used >= MIB &&
             m2.reserved + m2.used + m2.free == m2.total,
         "memory (v2) of %d: %d, %llu used, %llu reserved, %llu free of %llu", d, result, m2.used, m2.reserved, m2.free, m2.total);
    return m2.used;
}

// A list of processes and their memory: each at most once, this one with what it has,
// and all together no more than there is.
static unsigned long long list(int d, const char *which, int result, unsigned count, const unsigned *pid,
                               const unsigned long long *used) {
    unsigned long long sum = 0, own = 0;
    want(result == 0 && count <= ROOM, "%s of %d: %d, %u processes", which, d, result, count);
    for (unsigned i = 0; result == 0 && i < count && i < ROOM; i++) {
        want(used[i] <= limit[d], "%s of %d: %u has %llu", which, d, pid[i], used[i]);
        sum += used[i];
        own += pid[i] == (unsigned)getpid() ? used[i] : 0;
        for (unsigned j = 0; j < i; j++)
            want(pid[j] != pid[i], "%s of %d: %u is listed twice", which, d, pid[i]);
        seen(pid[i]);
    }
    want(sum <= limit[d], "%s of %d: %llu together", which, d, sum);
    want(own == MIB, "%s of %d: %llu for who asks", which, d, own);
    return sum;
}

#define LIST(list_, field) \
    for (unsigned i = 0; i < ROOM; i++) { \
        pid[i] = (list_)[i].pid; \
        used[i] = (list_)[i].used; \
    }

static unsigned long long used_by_processes(int d) {
    unsigned pid[ROOM], count = ROOM;
    unsigned long long used[ROOM], sum = 0;
    struct process_v1 one[ROOM] = {0};
    struct process_v2 two[ROOM] = {0};
    struct detail details[ROOM] = {0};
    struct detail_list all = {.version = sizeof all | 1u << 24, .count = ROOM, .processes = details};
    int result = NVML("DeviceGetComputeRunningProcesses", handle[d], &count, one);
    LIST(one, used);
    list(d, "processes", result, count, pid, used);
    for (int version = 2; version <= 3; version++) {
        count = ROOM;
        result = version == 2 ? NVML("DeviceGetComputeRunningProcesses_v2", handle[d], &count, two)
                              : NVML("DeviceGetComputeRunningProcesses_v3", handle[d], &count, two);
        LIST(two, used);
        sum = list(d, "processes (v2, v3)", result, count, pid, used);
    }
    result = NVML("DeviceGetRunningProcessDetailList", handle[d], &all);
    LIST(details, used);
    list(d, "details", result, all.count, pid, used);
    const char *nobody[] = {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"};
    for (int i = 0; i < 2; i++) {
        count = ROOM;
        result = ((int (*)(void *, unsigned *, void *))find(nobody[i]))(handle[d], &count, two);
        want(result == 0 && count == 0, "%s of %d: %d, %u", nobody[i], d, result, count);
    }
    return sum;
}

static void look_at_time(int d) {
    struct utilization whole = {0};
    struct sample samples[ROOM] = {0};
    struct busy busy[ROOM] = {0};
    struct busy_list all = {.version = sizeof all | 1u << 24, .count = ROOM, .processes = busy};
    unsigned count = ROOM;
    int result = NVML("DeviceGetUtilizationRates", handle[d], &whole);
    want(result == 0 && whole.gpu <= 100 && whole.memory <= 100, "utilization of %d: %d, %u, %u", d, result, whole.gpu, whole.memory);
    result = NVML("DeviceGetProcessUtilization", handle[d], samples, &count, 0ull);
    want(result == 0 || result == 6, "utilization by process of %d: %d", d, result);
    for (unsigned i = 0; result == 0 && i < count; i++) {
        seen(samples[i].pid);
        for (int k = 0; k < 4; k++)
            want(samples[i].percent[k] <= 100, "utilization of %d by %u: %u", d, samples[i].pid, samples[i].percent[k]);
    }
    result = NVML("DeviceGetProcessesUtilizationInfo", handle[d], &all);
    want(result == 0 || result == 6, "utilization by processes of %d: %d", d, result);
    for (unsigned i = 0; result == 0 && i < all.count; i++) {
        seen(busy[i].pid);
        for (int k = 0; k < 6; k++)
            want(busy[i].percent[k] <= 100, "utilization of %d by %u: %u", d, busy[i].pid, busy[i].percent[k]);
    }
}

static bool good(const char *step, int result) {
    if (result != 0)
        fprintf(stderr, "watch: %s: error %d\n", step, result);
    return result == 0;
}
#define TRY(call) good(#call, (int)(call))

static bool prepare(int count, char **mib) {
    bool made = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL) != NULL && TRY(cuInit(0)) && TRY(NVML("Init_v2"));
    devices = count;
    for (int d = 0; made && d < count; d++) {
        CUdeviceptr kept;
        CUuuid raw;
        char uuid[64] = "GPU-", *end = uuid + 4;
        limit[d] = (unsigned long long)atoi(mib[d]) * MIB;
        made = TRY(cuDevicePrimaryCtxRetain(&context[d], d)) && TRY(cuCtxSetCurrent(context[d])) &&
               TRY(cuMemAlloc_v2(&kept, MIB)) && TRY(cuDeviceGetUuid_v2(&raw, d));
        for (int i = 0; i < 16; i++)
            end += sprintf(end, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)raw.bytes[i]);
        made = made && TRY(NVML("DeviceGetHandleByUUID", uuid, &handle[d]));
    }
    return made;
}

int main(int argc, char **argv) {
    char line[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 2 || argc > 17 || !prepare(argc - 1, argv + 1))
        return 1;
    while (fgets(line, sizeof line, stdin) != NULL) {
        int times = 0;
        problems = pid_count = 0;
        first[0] = 0;
        if (sscanf(line, "watch %d", &times) != 1) {
            for (int d = 0; d < devices; d++)
                printf("%s%llu %llu %llu", d != 0 ? " " : "", used_by_cuda(d), used_by_nvml(d), used_by_processes(d));
            puts("");
            continue;
        }
        for (; times > 0; times--)
            for (int d = 0; d < devices; d++) {
                used_by_cuda(d);
                used_by_nvml(d);
                used_by_processes(d);
                look_at_time(d);
            }
        printf("%u %s;", problems, first);
        for (unsigned i = 0; i < pid_count; i++)
            printf(" %u", pids[i]);
        puts("");
    }
    return 0;
}
