// SPDX-License-Identifier: Apache-2.0
//
// lookup: finds functions in every way that programs do, and prints for each
// whether the library's function came back ("ours"), the driver's ("driver"),
// another's ("other") or none ("none", and whether dlerror says so).
//
// Not linked with the driver: it is opened, as the CUDA runtime does it.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *how, void *found) {
    Dl_info info;
    const char *where = "none";
    if (found == NULL && dlerror() == NULL)
        where = "none-without-error";
    if (found != NULL && dladdr(found, &info) != 0) {
        where = strstr(info.dli_fname, "libvgpu") != NULL   ? "ours"
                : strstr(info.dli_fname, "libcuda") != NULL ? "driver"
                                                            : "other";
    }
    printf("%s %s\n", how, where);
}

// The program's own function of a name of the table.
__attribute__((visibility("default"))) int cuArrayDestroy(void *array) { return array != NULL; }

typedef int (*get_proc_v1)(const char *, void **, int, uint64_t);
typedef int (*get_proc_v2)(const char *, void **, int, uint64_t, int *);

static void ask(get_proc_v2 get, const char *name, int version, uint64_t flags) {
    void *found = NULL;
    char how[128];
    int status = -1, result = get(name, &found, version, flags, &status);
    Dl_info info;
    if (result == 0 && found != NULL && dladdr(found, &info) != 0 && info.dli_sname != NULL)
        snprintf(how, sizeof how, "proc:%s:%d:%d=%s", name, version, (int)flags, info.dli_sname);
    else
        snprintf(how, sizeof how, "proc:%s:%d:%d=%d", name, version, (int)flags, result);
    say(how, found);
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    // Nothing is loaded yet: a program that asks must hear that there is none.
    say("default-before", dlsym(RTLD_DEFAULT, "cuInit"));
    void *libc = dlopen("libc.so.6", RTLD_LAZY);
    say("wrong-handle", dlsym(libc, "cuInit"));
    say("unknown", dlsym(RTLD_DEFAULT, "cuNoSuchFunction"));
    say("next", dlsym(RTLD_NEXT, "puts"));

    say("own-default", dlsym(RTLD_DEFAULT, "cuArrayDestroy"));
    say("own-next", dlsym(RTLD_NEXT, "cuArrayDestroy"));

    void *cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (cuda == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    say("handle", dlsym(cuda, "cuMemAlloc_v2"));
    say("handle-not-in-table", dlsym(cuda, "cuDeviceGetName"));
    say("handle-unknown", dlsym(cuda, "cuNoSuchFunction"));
    say("absent-from-driver", dlsym(cuda, "cuMulticastBindAddr_v2"));
    void *real = dlsym(libc, "dlsym");
    say("dlsym-of-dlsym", ((void *(*)(void *, const char *))real)(cuda, "cuMemAlloc_v2"));
    for (int i = 0; i < 2; i++) {
#ifdef __x86_64__
        static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.34"};
#else
        static const char *const versions[] = {"GLIBC_2.17", "GLIBC_2.34"};
#endif
        void *versioned = dlvsym(libc, "dlsym", versions[i]);
        printf("%s ", versions[i]);
        say("dlvsym-of-dlsym",
            versioned != NULL ? ((void *(*)(void *, const char *))versioned)(cuda, "cuMemAlloc_v2") : NULL);
    }
    say("own-default-beside-driver", dlsym(RTLD_DEFAULT, "cuArrayDestroy"));
    say("whole-program", dlsym(dlopen(NULL, RTLD_LAZY), "cuNoSuchFunction"));

    get_proc_v1 get1 = (get_proc_v1)dlsym(cuda, "cuGetProcAddress");
    get_proc_v2 get2 = (get_proc_v2)dlsym(cuda, "cuGetProcAddress_v2");
    if (get1 == NULL || get2 == NULL)
        return 1;
    void *found = NULL;
    say("proc1", get1("cuMemAlloc", &found, 11080, 0) == 0 ? found : NULL);
    ask(get2, "cuMemAlloc", 12000, 0);
    ask(get2, "cuLaunchKernel", 12000, 0);
    ask(get2, "cuLaunchKernel", 12000, 1);
    ask(get2, "cuLaunchKernel", 12000, 2);
    ask(get2, "cuMemFree", 12000, 2);
    ask(get2, "cuGetProcAddress", 11030, 0);
    ask(get2, "cuGetProcAddress", 12000, 0);
    ask(get2, "cuDeviceGetName", 12000, 0);
    ask(get2, "cuNoSuchFunction", 12000, 0);
    return 0;
}
