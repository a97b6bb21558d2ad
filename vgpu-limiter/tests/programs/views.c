// SPDX-License-Identifier: Apache-2.0
//
// views: what NVML shows of device 0: both memory calls, then the processes.
// With an argument, it first reloads the library, as go-nvml does.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

struct sample {
    unsigned pid;
    unsigned long long time;
    unsigned percent[4];
};
struct busy {
    unsigned long long time;
    unsigned pid, percent[6];
};
struct busy_list {
    unsigned version, count;
    unsigned long long since;
    struct busy *processes;
};

static void *library;

static void *find(const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

int main(int argc, char **argv) {
    (void)argv;
    void *device;
    struct memory m = {0};
    struct memory_v2 m2 = {.version = sizeof m2 | 2u << 24};
    struct process list[64];
    library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    if (library == NULL)
        return 1;
    ((int (*)(void))find("nvmlInit_v2"))();
    for (int i = 0; i < argc; i++) {
        if (i > 0) {
            ((int (*)(void))find("nvmlShutdown"))();
            dlclose(library);
            library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
            ((int (*)(void))find("nvmlInit_v2"))();
        }
        ((int (*)(unsigned, void **))find("nvmlDeviceGetHandleByIndex_v2"))(0, &device);
        int result = ((int (*)(void *, void *))find("nvmlDeviceGetMemoryInfo"))(device, &m);
        printf("memory %d %llu %llu %llu\n", result, m.total, m.free, m.used);
        result = ((int (*)(void *, void *))find("nvmlDeviceGetMemoryInfo_v2"))(device, &m2);
        printf("memory_v2 %d %llu %llu %llu\n", result, m2.total, m2.free, m2.used);
        unsigned count = 0;
        int (*processes)(void *, unsigned *, void *) = find("nvmlDeviceGetComputeRunningProcesses_v3");
        result = processes(device, &count, NULL);
        printf("count %d %u\n", result, count);
        count = 64;
        result = processes(device, &count, list);
        printf("processes %d %u\n", result, count);
        for (unsigned p = 0; result == 0 && p < count; p++)
            printf("process %u %llu\n", list[p].pid, list[p].used);
        struct sample samples[64] = {0};
        count = 64;
        result = ((int (*)(void *, void *, unsigned *, unsigned long long))find("nvmlDeviceGetProcessUtilization"))(
            device, samples, &count, 0);
        printf("busy %d %u", result, count);
        for (unsigned p = 0; result == 0 && p < count; p++)
            printf(" %u", samples[p].pid);
        struct busy busy[64] = {0};
        struct busy_list all = {.version = sizeof all | 1u << 24, .count = 64, .processes = busy};
        result = ((int (*)(void *, void *))find("nvmlDeviceGetProcessesUtilizationInfo"))(device, &all);
        printf("\nbusy_info %d %u", result, all.count);
        for (unsigned p = 0; result == 0 && p < all.count; p++)
            printf(" %u", busy[p].pid);
        puts("");
    }
    return 0;
}
