// SPDX-License-Identifier: Apache-2.0
//
// Part of calls: modules and libraries with a variable of so many bytes.

static CUmodule module[64];
static CUlibrary library[64];

static const char *image(size_t bytes) {
    static char text[128];
    snprintf(text, sizeof text, "simgpu-module 1\nkernel k 1000\nglobal g %zu\n", bytes);
    return text;
}

static int load_module(int place, size_t bytes) {
    return cuModuleLoadData(&module[place], image(bytes));
}

static int load_library(int place, size_t bytes) {
    return cuLibraryLoadData(&library[place], image(bytes), NULL, NULL, 0, NULL, NULL, 0);
}
