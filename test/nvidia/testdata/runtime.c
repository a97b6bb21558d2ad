// SPDX-License-Identifier: Apache-2.0
//
// What a program on the CUDA runtime (argument 1: its path) and one on the driver
// (argument 2) are told where there is no device. Our own declarations: the packages with
// the headers are not needed.
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

static void *open_library(const char *path) {
    void *lib = dlopen(path, RTLD_NOW);
    if (!lib) fprintf(stderr, "%s\n", dlerror());
    return lib;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    void *rt = open_library(argv[1]), *cu = open_library(argv[2]);
    if (!rt || !cu) return 1;
    int n = -1, version = 0;
    size_t free_bytes = 0, total = 0;
    void *p = NULL;
    int (*count)(int *) = (int (*)(int *))dlsym(rt, "cudaGetDeviceCount");
    int (*driver)(int *) = (int (*)(int *))dlsym(rt, "cudaDriverGetVersion");
    int (*info)(size_t *, size_t *) = (int (*)(size_t *, size_t *))dlsym(rt, "cudaMemGetInfo");
    int (*make)(void **, size_t) = (int (*)(void **, size_t))dlsym(rt, "cudaMalloc");
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cu, "cuInit");
    int (*alloc)(void **, size_t) = (int (*)(void **, size_t))dlsym(cu, "cuMemAlloc_v2");
    int (*version_of)(int *) = (int (*)(int *))dlsym(cu, "cuDriverGetVersion");
    printf("cudaDriverGetVersion %d", driver(&version));
    printf(" %d\n", version);
    printf("cudaGetDeviceCount %d\n", count(&n));
    printf("cudaMemGetInfo %d\n", info(&free_bytes, &total));
    printf("cudaMalloc %d\n", make(&p, 1 << 20));
    printf("cuInit %d\n", init(0));
    printf("cuMemAlloc %d\n", alloc(&p, 1 << 20));
    printf("cuDriverGetVersion %d", version_of(&version));
    printf(" %d\n", version);
    return 0;
}
