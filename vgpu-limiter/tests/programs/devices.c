// SPDX-License-Identifier: Apache-2.0
//
// devices: what NVML lists, a line for each index up to the first that is refused: the index
// that the device itself is said to have, and its UUID. Then a line for each UUID or PCI
// address among the arguments: the result of asking for it.

#include "views.h"

#include <string.h>

int main(int argc, char **argv) {
    library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    if (library == NULL || NVML("Init_v2") != 0)
        return 1;
    for (int v2 = 0; v2 < 2; v2++) {
        unsigned count = 0;
        int (*counts)(unsigned *) = find(v2 ? "nvmlDeviceGetCount_v2" : "nvmlDeviceGetCount");
        int (*by_index)(unsigned, void **) = find(v2 ? "nvmlDeviceGetHandleByIndex_v2" : "nvmlDeviceGetHandleByIndex");
        int result = counts(&count);
        printf("count %d %u\n", result, count);
        for (unsigned i = 0;; i++) {
            void *device;
            unsigned index = 99;
            char uuid[96] = "";
            if ((result = by_index(i, &device)) != 0)
                break;
            NVML("DeviceGetIndex", device, &index);
            NVML("DeviceGetUUID", device, uuid, (unsigned)sizeof uuid);
            printf("%u %s\n", index, uuid);
        }
        printf("refused %d\n", result);
    }
    for (int i = 1; i < argc; i++) {
        void *device;
        const char *by = strncmp(argv[i], "GPU-", 4) == 0 ? "nvmlDeviceGetHandleByUUID" : "nvmlDeviceGetHandleByPciBusId_v2";
        printf("named %d\n", ((int (*)(const char *, void **))find(by))(argv[i], &device));
    }
    return 0;
}
