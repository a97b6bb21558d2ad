// SPDX-License-Identifier: Apache-2.0
//
// unit/image: images cut short and changed at random, each in memory of exactly its size:
// the sanitizers end the program where anything else is read. What a broken image is
// taken for does not matter here (cuda_ptx.c).
#include "check.h"

#include "../cuda/image.h"

#include <string.h>

#define PTX                                                                               \
    ".version 7.0\n.target sm_70, debug\n.address_size 64\n"                              \
    "// simgpu: kernel k 10 20 argument\n"                                                \
    ".global .attribute(.managed) .align 8 .v2 .u32 a[4][2] = {{1, 2}, {3}}, b;\n"        \
    ".const .b8 c[] = {1, 2};\n.extern .func (.param .b32 r) f (.param .b64 a);\n" \
    "/* a comment */ .section .debug {\n.b8 1\n}\n"                                       \
    ".visible .entry k(.param .u64 .ptr .global .align 8 p, .param .align 4 .b8 q[12])\n" \
    ".maxntid 128, 1, 1\n.pragma \"x\\\"\";\n{ .reg .b32 %r<2>; { ret; } }\n"

static const char ptx[] = PTX;
static struct {
    uint32_t magic;
    uint16_t version, bytes;
    uint64_t rest;
    struct {
        uint16_t kind, version;
        uint32_t bytes;
        uint64_t payload;
        char text[(sizeof ptx + 7) & ~7ul];
    } entries[2];
} fat = {0xba55ed50, 1, 16, sizeof fat.entries, {{2, 1, 16, sizeof fat.entries[0].text, "\177ELF"}, {1, 1, 16, sizeof fat.entries[0].text, PTX}}};

static unsigned kernels;
static CUresult kernel(void *to, const struct ptx_kernel *k) {
    uint64_t sum = 0;
    for (size_t i = 0; i < k->name_size; i++) sum += (unsigned char)k->name[i];
    for (unsigned i = 0; i < k->count; i++) sum += k->sizes[i] + k->offsets[i];
    *(uint64_t *)to += sum;
    kernels++;
    return CUDA_SUCCESS;
}
static CUresult global(void *to, const struct ptx_global *g) {
    for (size_t i = 0; i < g->name_size; i++) *(uint64_t *)to += (unsigned char)g->name[i];
    return CUDA_SUCCESS;
}
static CUresult comment(void *to, const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) *(uint64_t *)to += (unsigned char)text[i];
    return CUDA_SUCCESS;
}

static uint64_t sum;
static const struct ptx_visitor visitor = {&sum, kernel, global, comment};

static void read_image(const void *image, size_t size) {
    struct image found;
    unsigned line;
    char *copy = malloc(size ? size : 1);
    memcpy(copy, image, size);
    if (image_find(&found, copy, size) == CUDA_SUCCESS && found.ptx) ptx_read(found.text, found.size, &visitor, &line);
    ptx_read(copy, size, &visitor, &line);
    free(copy);
}

static uint32_t dice(uint32_t n) {
    static uint64_t x = 1;
    x = x * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(x >> 33) % n;
}

static void torture(const char *image, size_t size) {
    static const char marks[] = "{}()[],;\"/*.=\n09\\";
    char changed[sizeof fat];
    for (size_t n = 0; n <= size; n++) read_image(image, n);
    for (unsigned round = 0; round < 20000; round++) {
        memcpy(changed, image, size);
        for (unsigned n = 1 + dice(4); n; n--) {
            char *at = changed + dice((uint32_t)size);
            *at = dice(2) ? marks[dice(sizeof marks - 1)] : (char)dice(256);
        }
        read_image(changed, dice(2) ? size : dice((uint32_t)size + 1));
    }
}

int main(void) {
    read_image(ptx, sizeof ptx);
    SAME(kernels, 2);
    read_image(&fat, sizeof fat);
    SAME(kernels, 3);
    torture(ptx, sizeof ptx);
    torture((const char *)&fat, sizeof fat);
    return 0;
}
