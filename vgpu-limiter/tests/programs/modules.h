// SPDX-License-Identifier: Apache-2.0
//
// Part of calls: modules and libraries with a variable of so many bytes, or with code
// of so many that is loaded when it is asked for.

static CUmodule module[64];
static CUlibrary library[64];

static const char *image(const char *what, size_t bytes) {
    static _Thread_local char text[128];
    snprintf(text, sizeof text, "simgpu-module 1\nkernel k 1000\n%s %zu\n", what, bytes);
    return text;
}

static int load_module(int place, size_t bytes) {
    return cuModuleLoadData(&module[place], image("global g", bytes));
}

static int load_library(int place, size_t bytes) {
    return cuLibraryLoadData(&library[place], image("global g", bytes), NULL, NULL, 0, NULL, NULL, 0);
}

static int load_lazy_module(int place, size_t bytes) {
    return cuModuleLoadData(&module[place], image("code k", bytes));
}

static int load_lazy_library(int place, size_t bytes) {
    return cuLibraryLoadData(&library[place], image("code k", bytes), NULL, NULL, 0, NULL, NULL, 0);
}

static int function_of_module(int place) {
    CUfunction f;
    return cuModuleGetFunction(&f, module[place], "k");
}

// By the ways that a library's kernel has: its function, its module's, and its module's
// loaded at once.
static int function_of_library(int place, int how) {
    CUkernel k;
    CUfunction f;
    CUmodule m;
    int result = cuLibraryGetKernel(&k, library[place], "k");
    if (result == 0 && how == 0)
        return cuKernelGetFunction(&f, k);
    if (result == 0)
        result = cuLibraryGetModule(&m, library[place]);
    if (result == 0)
        result = how == 1 ? (int)cuModuleGetFunction(&f, m, "k") : (int)cuFuncLoad((CUfunction)k);
    return result;
}

static int global_of(CUmodule m) {
    CUdeviceptr p;
    return cuModuleGetGlobal_v2(&p, NULL, m, "g");
}

static int global_of_library(int place) {
    CUdeviceptr p;
    return cuLibraryGetGlobal(&p, NULL, library[place], "g");
}

// As the CUDA runtime 11 loads a program's modules: past the API.
static int load_past_the_api(int place, size_t bytes) {
    static const unsigned char id[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                         0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
    const void *table;
    int result = cuGetExportTable(&table, (const CUuuid *)id);
    if (result != 0)
        return result;
    int (*load)(CUmodule *, const void *, void *, void *, unsigned) =
        ((int (*const *)(CUmodule *, const void *, void *, void *, unsigned))table)[6];
    return load(&module[place], image("global g", bytes), NULL, NULL, 0);
}

static int launch_of_library(int place) {
    CUkernel k;
    int result = cuLibraryGetKernel(&k, library[place], "k");
    return result != 0 ? result : (int)cuLaunchKernel((CUfunction)k, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

// Loads so many modules of one MiB while threads take and give back memory.
static atomic_bool loaded;

static void *allocate_beside(void *none) {
    CUdeviceptr p;
    cuCtxSetCurrent(context[0]);
    while (!atomic_load(&loaded))
        if (cuMemAlloc_v2(&p, 3 * MIB) == CUDA_SUCCESS)
            cuMemFree_v2(p);
    return none;
}

static int load_beside(int modules) {
    pthread_t thread[3];
    CUmodule m;
    int result = 0;
    atomic_store(&loaded, false);
    for (int i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, allocate_beside, NULL);
    for (int i = 0; result == 0 && i < modules; i++)
        result = cuModuleLoadData(&m, image("global g", MIB));
    atomic_store(&loaded, true);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    return result;
}

// Modules that several threads load at the same time, ten each.
static void *load_some(void *none) {
    CUmodule m;
    cuCtxSetCurrent(context[0]);
    for (int i = 0; i < 10; i++)
        cuModuleLoadData(&m, image("global g", MIB));
    return none;
}

static int load_at_once(int threads) {
    pthread_t thread[16];
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, load_some, NULL);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    return 0;
}
