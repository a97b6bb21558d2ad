// SPDX-License-Identifier: Apache-2.0
//
// byhand LINKED MIB: finds the driver's functions in its ELF tables, where no lookup of a
// name is asked, and allocates so much. LINKED is 1 if it calls the library's cuInit before.
// It answers the result, and ends when its input does.

#include "cuda.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// How many symbols there are: the last one of the last chain.
static uint32_t symbols(const uint32_t *hash) {
    uint32_t count = hash[0], first = hash[1], words = hash[2], last = 0;
    const uint32_t *buckets = hash + 4 + words * (sizeof(void *) / 4), *chains = buckets + count;
    for (uint32_t i = 0; i < count; i++)
        last = buckets[i] > last ? buckets[i] : last;
    while (last >= first && (chains[last - first] & 1) == 0)
        last++;
    return last + 1;
}

static void *find(const struct link_map *map, const char *name) {
    const ElfW(Sym) *table = NULL;
    const char *names = NULL;
    const uint32_t *hash = NULL;
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
        table = d->d_tag == DT_SYMTAB ? (const void *)d->d_un.d_ptr : table;
        names = d->d_tag == DT_STRTAB ? (const void *)d->d_un.d_ptr : names;
        hash = d->d_tag == DT_GNU_HASH ? (const void *)d->d_un.d_ptr : hash;
    }
    for (uint32_t i = 0; table != NULL && names != NULL && hash != NULL && i < symbols(hash); i++)
        if (table[i].st_shndx != SHN_UNDEF && strcmp(names + table[i].st_name, name) == 0)
            return (void *)(map->l_addr + table[i].st_value);
    fprintf(stderr, "no %s\n", name);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    const struct link_map *map = library; // as glibc has it
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))find(map, "cuInit");
    CUresult (*retain)(CUcontext *, CUdevice) = (CUresult(*)(CUcontext *, CUdevice))find(map, "cuDevicePrimaryCtxRetain");
    CUresult (*set)(CUcontext) = (CUresult(*)(CUcontext))find(map, "cuCtxSetCurrent");
    CUresult (*allocate)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))find(map, "cuMemAlloc_v2");
    CUcontext context;
    CUdeviceptr memory;
    CUresult result = strcmp(argv[1], "1") == 0 ? cuInit(0) : init(0);
    if (result == CUDA_SUCCESS)
        result = retain(&context, 0);
    if (result == CUDA_SUCCESS)
        result = set(context);
    if (result == CUDA_SUCCESS)
        result = allocate(&memory, (size_t)atol(argv[2]) << 20);
    printf("byhand %d\n", result);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
