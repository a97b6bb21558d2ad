// SPDX-License-Identifier: Apache-2.0
//
// Part of unit/cuda: modules of PTX.
#define _GNU_SOURCE
#include "case.h"

#include <string.h>

#define HEAD ".version 7.0\n.target sm_70\n.address_size 64\n"
#define BODY "{\n\t.reg .pred %p<2>;\n\t// } in a comment\n\t{ mov.u64 %rd1, \"}\"; }\n\tret;\n}\n"

static const char text[] =
    "//\n// As nvcc writes it.\n//\n" HEAD
    ".extern .func (.param .b32 result) vprintf (.param .b64 a, .param .b64 b);\n"
    ".extern .global .align 4 .u32 elsewhere;\n"
    ".global .align 4 .u32 counter;\n"
    ".visible .global .align 16 .v4 .f32 table[10][3] = {{1, 2, 3}, {4}};\n"
    ".const .align 1 .b8 word[] = {104, 105, 0};\n"
    ".global .attribute(.managed) .align 8 .u64 shared_word;\n"
    ".global .texref picture;\n"
    ".global .u16 x, y[4];\n"
    ".func (.reg .u32 r) twice (.reg .u32 a)" BODY
    ".visible .entry _Z6kernelPfS_i6Struct(\n"
    "\t.param .u64 .ptr .global .align 16 _Z6kernel_param_0,\n\t.param .u64 p1, /* here, too */\n"
    "\t.param .u32 p2,\n\t.param .align 8 .b8 p3[24]\n)\n.maxntid 128, 1, 1\n.minnctapersm 2\n.pragma \"nounroll\";\n" BODY
    ".entry none()" BODY
    ".visible .entry bare" BODY
    ".file 1 \"kernel.cu\", 123, 45\n.section .debug_abbrev\n{\n.b8 1\n}\n";

// A fat binary of one entry; 0 bytes of payload for the whole text.
static struct {
    uint32_t magic;
    uint16_t version, bytes;
    uint64_t rest;
    struct {
        uint16_t kind, version;
        uint32_t bytes;
        uint64_t payload;
        char rest[48], text[sizeof text];
    } entry;
} fat = {0xba55ed50, 1, 16, sizeof fat.entry, {1, 0x101, 64, sizeof fat.entry - 64, "", ""}};

static void expect(CUfunction f, size_t index, size_t offset, size_t size) {
    size_t got_offset, got_size;
    OK(cuFuncGetParamInfo(f, index, &got_offset, &got_size));
    SAME(got_offset, offset);
    SAME(got_size, size);
}

static void has_everything(CUmodule m) {
    static const struct {
        const char *name;
        size_t size;
    } globals[] = {{"counter", 4}, {"table", 480}, {"word", 3}, {"shared_word", 8}, {"x", 2}, {"y", 8}};
    CUdeviceptr at;
    CUfunction f;
    size_t n;
    unsigned count;
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++) {
        OK(cuModuleGetGlobal_v2(&at, &n, m, globals[i].name));
        SAME(n, globals[i].size);
        if (strcmp(globals[i].name, "shared_word") == 0) *(uint64_t *)(uintptr_t)at = 7;
    }
    SAME(cuModuleGetGlobal_v2(&at, &n, m, "elsewhere"), CUDA_ERROR_NOT_FOUND);
    SAME(cuModuleGetGlobal_v2(&at, &n, m, "picture"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetFunctionCount(&count, m));
    SAME(count, 3);
    SAME(cuModuleGetFunction(&f, m, "twice"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetFunction(&f, m, "none"));
    SAME(cuFuncGetParamInfo(f, 0, &n, &n), CUDA_ERROR_INVALID_VALUE);
    OK(cuModuleGetFunction(&f, m, "bare"));
    OK(cuModuleGetFunction(&f, m, "_Z6kernelPfS_i6Struct"));
    expect(f, 0, 0, 8);
    expect(f, 1, 8, 8);
    expect(f, 2, 16, 4);
    expect(f, 3, 24, 24);
    SAME(cuFuncGetParamInfo(f, 4, &n, &n), CUDA_ERROR_INVALID_VALUE);
    launch(f, NULL);
    OK(cuCtxSynchronize());
}

void ptx(void) {
    CUmodule m;
    CUlibrary l;
    CUkernel k;
    size_t offset, size;
    start();
    size_t before = available();
    memcpy(fat.entry.text, text, sizeof text);
    const struct {
        uint32_t magic, version;
        const void *entries;
        void *unused;
    } wrapper = {0x466243b1, 1, &fat, NULL};
    const void *images[] = {text, &fat, &wrapper};
    for (size_t i = 0; i < sizeof images / sizeof *images; i++) {
        OK(cuModuleLoadData(&m, images[i]));
        has_everything(m);
        OK(cuModuleUnload(m));
        OK(cuLibraryLoadData(&l, images[i], NULL, NULL, 0, NULL, NULL, 0));
        OK(cuLibraryGetModule(&m, l));
        has_everything(m);
        OK(cuLibraryGetKernel(&k, l, "_Z6kernelPfS_i6Struct"));
        OK(cuKernelGetParamInfo(k, 3, &offset, &size));
        SAME(offset, 24);
        SAME(size, 24);
        OK(cuLibraryUnload(l));
    }
    SAME(available(), before);
}

// How long launches take: TestBusyTimeIsExact adds it up. A T4 holds 40 times 16 blocks
// of 64 threads.
void ptx_time(void) {
    static const char timed[] =
        HEAD "// simgpu: kernel said 5000 10 argument\n// simgpu: kernel free argument\n"
        ".entry waves(.param .u64 a)" BODY ".entry said(.param .u64 a)" BODY ".entry free(.param .u32 a)" BODY;
    CUmodule m;
    CUfunction f;
    uint64_t ns = 300;
    struct {
        uint32_t ns, beyond;
    } small = {7, 7};
    size_t size = sizeof small.ns;
    void *params[] = {&ns}, *small_params[] = {&small};
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &small, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    start();
    OK(cuModuleLoadData(&m, timed));
    OK(cuModuleGetFunction(&f, m, "waves"));
    OK(cuLaunchKernel(f, 641, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    OK(cuLaunchKernel(f, 640, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    OK(cuModuleGetFunction(&f, m, "said"));
    OK(cuLaunchKernel(f, 4, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    OK(cuModuleGetFunction(&f, m, "free"));
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, small_params, NULL));
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    OK(cuCtxSynchronize());
}

void bad_images(void) {
    static const char *const broken[] = {
        HEAD ".entry k(",
        HEAD ".entry k() {",
        HEAD ".entry k() { ret; } }",
        HEAD ".entry () { ret; }",
        HEAD ".entry k(.param .u64) { ret; }",
        HEAD ".entry k(.param .u64 a .param .u64 b) { ret; }",
        HEAD ".entry k(.param .u63 a) { ret; }",
        HEAD ".entry k(.param .b8 a[32765]) { ret; }",
        HEAD ".entry k(.param .b8 a[]) { ret; }",
        HEAD ".entry k() { ret; } .entry k() { ret; }",
        HEAD ".global .u32 a",
        HEAD ".global .u32 a[18446744073709551615];",
        HEAD ".global .align 3 .u32 a;",
        HEAD ".entry k() { \"; }",
        HEAD "/* ",
        HEAD "hello",
        HEAD "// simgpu: kernel other 1\n.entry k() { ret; }",
        HEAD "// simgpu: kernel k fast\n.entry k() { ret; }",
        HEAD "// simgpu: kernel k argument\n.entry k() { ret; }",
        ".version 7\n",
        HEAD ".address_size 32",
    };
    CUmodule m;
    char log[64];
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
    start();
    size_t before = available();
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        if (cuModuleLoadData(&m, broken[i]) != CUDA_ERROR_INVALID_PTX) printf("%s\n", broken[i]);
        SAME(cuModuleLoadData(&m, broken[i]), CUDA_ERROR_INVALID_PTX);
    }
    SAME(cuModuleLoadData(&m, HEAD ".global .b8 a[17592186044416];"), CUDA_ERROR_OUT_OF_MEMORY);
    void *values[] = {(void *)sizeof log, log, (void *)64};
    SAME(cuModuleLoadDataEx(&m, HEAD "\nhello", 3, options, values), CUDA_ERROR_INVALID_PTX);
    TRUE(strstr(log, "line 5;"));
    SAME((size_t)values[0], strlen(log));
    SAME((size_t)values[2], 0);
    values[0] = (void *)sizeof log;
    OK(cuModuleLoadDataEx(&m, HEAD, 3, options, values));
    SAME((size_t)values[0], 0);
    OK(cuModuleUnload(m));

    SAME(cuModuleLoadData(&m, ""), CUDA_ERROR_INVALID_IMAGE);
    SAME(cuModuleLoadData(&m, "hello"), CUDA_ERROR_INVALID_IMAGE);
    memcpy(fat.entry.text, text, sizeof text);
    uint64_t rest = fat.rest;
    fat.rest = rest - 1;
    SAME(cuModuleLoadData(&m, &fat), CUDA_ERROR_INVALID_IMAGE);
    fat.rest = rest;
    fat.entry.payload++;
    SAME(cuModuleLoadData(&m, &fat), CUDA_ERROR_INVALID_IMAGE);
    fat.entry.payload--;
    fat.entry.bytes = 8;
    SAME(cuModuleLoadData(&m, &fat), CUDA_ERROR_INVALID_IMAGE);
    fat.entry.bytes = 64;
    fat.bytes = 8;
    SAME(cuModuleLoadData(&m, &fat), CUDA_ERROR_INVALID_IMAGE);
    fat.bytes = 16;
    memset(fat.entry.text, 0x42, 8);  // compressed, or of another kind
    SAME(cuModuleLoadData(&m, &fat), CUDA_ERROR_NO_BINARY_FOR_GPU);
    SAME(available(), before);
}

void linker(void) {
    char one[] = HEAD ".extern .func f;\n.entry a(.param .u32 n)" BODY, two[] = HEAD ".func f()" BODY ".entry b" BODY, bad[] = HEAD "!", log[256] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log}, *image;
    CUlinkState s;
    CUmodule m;
    CUfunction f;
    size_t size;
    start();
    OK(cuLinkCreate_v2(2, options, values, &s));
    SAME(cuLinkComplete(s, &image, &size), CUDA_ERROR_INVALID_VALUE);
    OK(cuLinkAddData_v2(s, CU_JIT_INPUT_PTX, one, sizeof one - 1, "one", 0, NULL, NULL));
    OK(cuLinkAddData_v2(s, CU_JIT_INPUT_PTX, two, sizeof two, "two", 0, NULL, NULL));
    values[1] = (void *)sizeof log;
    SAME(cuLinkAddData_v2(s, CU_JIT_INPUT_PTX, bad, sizeof bad, "bad", 0, NULL, NULL), CUDA_ERROR_INVALID_PTX);
    TRUE(strstr(log, "line 4"));
    OK(cuLinkComplete(s, &image, &size));
    SAME(strlen(image) + 1, size);
    OK(cuModuleLoadData(&m, image));
    OK(cuLinkDestroy(s));
    OK(cuModuleGetFunction(&f, m, "a"));
    expect(f, 0, 0, 4);
    OK(cuModuleGetFunction(&f, m, "b"));
    OK(cuLinkCreate_v2(0, NULL, NULL, &s));
    OK(cuLinkAddData_v2(s, CU_JIT_INPUT_PTX, one, sizeof one, "one", 0, NULL, NULL));
    OK(cuLinkAddData_v2(s, CU_JIT_INPUT_PTX, one, sizeof one, "again", 0, NULL, NULL));
    SAME(cuLinkComplete(s, &image, &size), CUDA_ERROR_INVALID_PTX);
    OK(cuLinkDestroy(s));
}
