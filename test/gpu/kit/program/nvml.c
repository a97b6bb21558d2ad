// SPDX-License-Identifier: Apache-2.0
//
// NVML, as far as the kit asks it. It changes nothing. The declarations are those of
// NVML's public ABI.
#include "kit.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PROCESSES 256
#define SAMPLES 1024
#define NOT_FOUND 6

typedef void *device;
struct memory {
    unsigned long long total, free, used;
};
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct sample {
    unsigned pid;
    unsigned long long at;
    unsigned sm, memory, encoder, decoder;
};

static int (*nvml_init)(void), (*version)(char *, unsigned), (*count)(unsigned *), (*handle)(unsigned, device *);
static int (*uuid)(device, char *, unsigned), (*name)(device, char *, unsigned), (*memory)(device, struct memory *);
static int (*mig)(device, unsigned *, unsigned *), (*mode)(device, int *);
static int (*running)(device, unsigned *, struct process *);
static int (*utilization)(device, struct sample *, unsigned *, unsigned long long);

static void find(void) {
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!lib) fail("dlopen libnvidia-ml.so.1", 0);
    const struct {
        const char *symbol;
        void *at;
    } all[] = {{"nvmlInit_v2", &nvml_init}, {"nvmlSystemGetDriverVersion", &version}, {"nvmlDeviceGetCount_v2", &count},
               {"nvmlDeviceGetHandleByIndex_v2", &handle}, {"nvmlDeviceGetUUID", &uuid}, {"nvmlDeviceGetName", &name},
               {"nvmlDeviceGetMemoryInfo", &memory}, {"nvmlDeviceGetMigMode", &mig}, {"nvmlDeviceGetComputeMode", &mode},
               {"nvmlDeviceGetComputeRunningProcesses_v3", &running}, {"nvmlDeviceGetProcessUtilization", &utilization}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!(*(void **)all[i].at = dlsym(lib, all[i].symbol))) fail(all[i].symbol, 0);
    int r = nvml_init();
    if (r) fail("nvmlInit_v2", r);
}

#define ASK(f, ...)                     \
    do {                                \
        int asked_ = f(__VA_ARGS__);    \
        if (asked_) fail(#f, asked_);   \
    } while (0)

void nvml_facts(void) {
    char text[128];
    unsigned devices;
    find();
    ASK(version, text, sizeof text);
    ASK(count, &devices);
    printf("{\"driver\":\"%s\",\"devices\":[", text);
    for (unsigned i = 0; i < devices; i++) {
        static struct process p[PROCESSES];
        device d;
        struct memory m;
        unsigned now_on = 0, pending, n = PROCESSES;
        int compute_mode = -1;
        char id[96];
        ASK(handle, i, &d);
        ASK(uuid, d, id, sizeof id);
        ASK(name, d, text, sizeof text);
        ASK(memory, d, &m);
        (void)mig(d, &now_on, &pending); // a card without MIG says NOT_SUPPORTED
        (void)mode(d, &compute_mode);
        if (running(d, &n, p)) n = 0; // a virtual GPU doesn't say
        printf("%s{\"uuid\":\"%s\",\"name\":\"%s\",\"total\":%llu,\"free\":%llu,\"used\":%llu,\"mig\":%u,"
               "\"compute_mode\":%d,\"processes\":[", i ? "," : "", id, text, m.total, m.free, m.used, now_on, compute_mode);
        for (unsigned k = 0; k < n; k++)
            printf("%s{\"pid\":%u,\"used\":%llu}", k ? "," : "", p[k].pid, p[k].used == ~0ull ? 0 : p[k].used);
        printf("]}");
    }
    printf("]}\n");
}

// The mean of what NVML says of each process of the first device that CUDA shows, which
// its environment may name by UUID. NVML samples some times a second.
void nvml_shares(double seconds) {
    static struct sample s[SAMPLES];
    static struct {
        unsigned pid, samples;
        double sum;
    } seen[PROCESSES];
    const char *want = getenv("CUDA_VISIBLE_DEVICES");
    unsigned devices, used = 0;
    device d = NULL;
    find();
    ASK(count, &devices);
    for (unsigned i = 0; i < devices; i++) {
        char id[96];
        device one;
        ASK(handle, i, &one);
        ASK(uuid, one, id, sizeof id);
        if (!d || (want && strncmp(id, want, strlen(id)) == 0)) d = one;
    }
    unsigned long long last = 0;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    last = (unsigned long long)t.tv_sec * 1000000 + (unsigned long long)t.tv_nsec / 1000;
    unsigned asked = 0, answered = 0;
    for (double end = now() + seconds; now() < end;) {
        unsigned n = SAMPLES;
        nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
        int r = utilization(d, s, &n, last);
        asked++;
        if (r == NOT_FOUND) continue; // nothing new
        if (r) fail("nvmlDeviceGetProcessUtilization", r);
        answered++;
        for (unsigned i = 0; i < n; i++) {
            unsigned k = 0;
            while (k < used && seen[k].pid != s[i].pid) k++;
            if (k == used && used == PROCESSES) continue;
            used += k == used;
            seen[k].pid = s[i].pid, seen[k].samples++, seen[k].sum += s[i].sm;
            if (s[i].at > last) last = s[i].at;
        }
    }
    printf("{\"asked\":%u,\"answered\":%u,\"processes\":[", asked, answered);
    for (unsigned k = 0; k < used; k++)
        printf("%s{\"pid\":%u,\"percent\":%.1f}", k ? "," : "", seen[k].pid, seen[k].sum / seen[k].samples);
    printf("]}\n");
}
