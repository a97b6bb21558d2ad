// SPDX-License-Identifier: Apache-2.0
//
// fuzz SEED COUNT NAMES: looks up random names in random ways, from a file of
// names, as they are and damaged, with random versions and flags, and prints what
// came of each: where the function is and what it is called there. The same seed
// asks the same questions.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char names[4096][80];
static unsigned name_count;
static uint64_t state;

static unsigned random_below(unsigned n) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (unsigned)(state >> 33) % n;
}

static void say(const char *how, const char *name, void *found) {
    Dl_info info;
    const char *object = found != NULL && dladdr(found, &info) != 0 ? strrchr(info.dli_fname, '/') : NULL;
    printf("%s %s %s %s\n", how, name, found == NULL ? "none" : object != NULL ? object + 1 : "?",
           object != NULL && info.dli_sname != NULL ? info.dli_sname : "-");
}

static const char *any_name(void) {
    static const char *const suffixes[] = {"_v2", "_v3", "_v4", "_ptsz", "_ptds", "_v2_ptsz", "_v9", "X"};
    static char name[96];
    strcpy(name, names[random_below(name_count)]);
    size_t length = strlen(name);
    switch (random_below(6)) {
    case 0:
        strcat(name, suffixes[random_below(8)]);
        break;
    case 1: // without its last suffix
        if (strchr(name, '_') != NULL)
            *strrchr(name, '_') = 0;
        break;
    case 2:
        name[random_below((unsigned)length)] = (char)(33 + random_below(94));
        break;
    case 3: // shorter
        name[1 + random_below((unsigned)length - 1)] = 0;
        break;
    }
    return name;
}

typedef int (*get_proc_v1)(const char *, void **, int, uint64_t);
typedef int (*get_proc_v2)(const char *, void **, int, uint64_t, int *);

int main(int argc, char **argv) {
    FILE *list = argc == 4 ? fopen(argv[3], "re") : NULL;
    while (list != NULL && name_count < 4096 && fscanf(list, "%79s", names[name_count]) == 1)
        name_count++;
    void *cuda = dlopen("libcuda.so.1", RTLD_LAZY), *nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    if (cuda == NULL || nvml == NULL || name_count == 0)
        return 1;
    get_proc_v1 get1 = (get_proc_v1)dlsym(cuda, "cuGetProcAddress");
    get_proc_v2 get2 = (get_proc_v2)dlsym(cuda, "cuGetProcAddress_v2");
    state = strtoull(argv[1], NULL, 10);
    for (long i = atol(argv[2]); i > 0; i--) {
        const char *name = any_name();
        int version = random_below(4) == 0 ? (int)random_below(20000) : 2000 + 10 * (int)random_below(1200);
        uint64_t flags = random_below(8) == 0 ? random_below(16) : random_below(3);
        void *found = NULL;
        char how[64];
        int result, status = -1;
        switch (random_below(6)) {
        case 0:
            say("cuda", name, dlsym(cuda, name));
            break;
        case 1:
            say("nvml", name, dlsym(nvml, name));
            break;
        case 2:
            say("default", name, dlsym(random_below(2) ? RTLD_DEFAULT : RTLD_NEXT, name));
            break;
        case 3:
            say("versioned", name, dlvsym(cuda, name, random_below(2) ? "GLIBC_2.2.5" : "libcuda.so.1"));
            break;
        case 4:
            result = get1(name, &found, version, flags);
            snprintf(how, sizeof how, "proc:%d:%u=%d", version, (unsigned)flags, result);
            say(how, name, found);
            break;
        case 5:
            result = get2(name, &found, version, flags, random_below(4) ? &status : NULL);
            snprintf(how, sizeof how, "proc2:%d:%u=%d:%d", version, (unsigned)flags, result, status);
            say(how, name, found);
            break;
        }
    }
    return 0;
}
