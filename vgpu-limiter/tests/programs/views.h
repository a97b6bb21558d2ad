// SPDX-License-Identifier: Apache-2.0
//
// Part of views, watch and devices: NVML's structures, and its functions by their names.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process_v2 {
    unsigned pid;
    unsigned long long used;
    unsigned instances[2];
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

static void *library = RTLD_DEFAULT; // where it is looked for

static void *find(const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return found;
}
#define NVML(name, ...) ((int (*)())find("nvml" name))(__VA_ARGS__)
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
