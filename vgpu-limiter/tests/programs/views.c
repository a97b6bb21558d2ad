// SPDX-License-Identifier: Apache-2.0
//
// views: what NVML shows of device 0: both memory calls, then the processes.
// With an argument, it first reloads the library, as go-nvml does.

#include "views.h"

int main(int argc, char **argv) {
    (void)argv;
    void *device;
    struct memory m = {0};
    struct memory_v2 m2 = {.version = sizeof m2 | 2u << 24};
    struct process_v2 list[64];
    library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    if (library == NULL)
        return 1;
    NVML("Init_v2");
    for (int i = 0; i < argc; i++) {
        if (i > 0) {
            NVML("Shutdown");
            dlclose(library);
            library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
            NVML("Init_v2");
        }
        NVML("DeviceGetHandleByIndex_v2", 0, &device);
        int result = NVML("DeviceGetMemoryInfo", device, &m);
        printf("memory %d %llu %llu %llu\n", result, m.total, m.free, m.used);
        result = NVML("DeviceGetMemoryInfo_v2", device, &m2);
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
        result = NVML("DeviceGetProcessUtilization", device, samples, &count, 0ULL);
        printf("busy %d %u", result, count);
        for (unsigned p = 0; result == 0 && p < count; p++)
            printf(" %u", samples[p].pid);
        struct busy busy[64] = {0};
        struct busy_list all = {.version = sizeof all | 1u << 24, .count = 64, .processes = busy};
        result = NVML("DeviceGetProcessesUtilizationInfo", device, &all);
        printf("\nbusy_info %d %u", result, all.count);
        for (unsigned p = 0; result == 0 && p < all.count; p++)
            printf(" %u", busy[p].pid);
        puts("");
    }
    return 0;
}
