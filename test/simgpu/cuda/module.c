// SPDX-License-Identifier: Apache-2.0
//
// module.c: modules and their functions, of PTX or of a text format of our own:
//
//   simgpu-module 1
//   kernel NAME BASE_NS [PER_BLOCK_NS] [argument]
//   global NAME BYTES
//   code NAME BYTES
//
// The code of the kernel NAME, which comes before, takes so many bytes of the device
// from its first use on, as where CUDA_MODULE_LOADING is LAZY: when its function is
// asked for, or when it is launched. Other kernels' code takes none.
//
// A launch of the kernel takes BASE_NS plus PER_BLOCK_NS for every block of the
// grid; with the word "argument" the first kernel argument, an unsigned 64-bit
// integer, adds that many nanoseconds. Blanks separate, a line ends with a
// newline, the text with a zero byte.
//
// A kernel of PTX takes WAVE_NS for each wave of blocks that the device holds at once,
// unless a comment of the PTX says otherwise, which may leave BASE_NS (0) out:
//
//   // simgpu: kernel NAME [BASE_NS [PER_BLOCK_NS]] [argument]
//   // simgpu: code NAME BYTES
//
// Invariants:
// - Machine code alone (ELF, fat binaries without one of these texts) is
//   NO_BINARY_FOR_GPU: there is no processor here that could run it.
// - A module's memory goes with its context, and is given back once.
#define _GNU_SOURCE
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAVE_NS 10000

static pthread_mutex_t lazily = PTHREAD_MUTEX_INITIALIZER;

bool module_lives(const struct CUmod_st *m) {
    return m->ctx && m->ctx->id == m->life && !atomic_load(&m->ctx->destroyed);
}

void module_unload(CUmodule m) {
    bool lives = module_lives(m);
    while (m->functions) {
        CUfunction f = m->functions;
        m->functions = f->next;
        if (f->code && lives) release(f->code);
        free(f->name);
        free(f->param_sizes);
        free(f->param_offsets);
        free(f);
    }
    while (m->globals) {
        struct global *g = m->globals;
        m->globals = g->next;
        if (lives) release(g->at);
        free(g->name);
        free(g);
    }
    free(m);
}

CUfunction module_function(CUmodule m, const char *name) {
    CUfunction f = m->functions;
    while (f && strcmp(f->name, name) != 0) f = f->next;
    return f;
}

static CUresult add_function(CUfunction *function, CUmodule m, const char *name, size_t size) {
    CUfunction f = calloc(1, sizeof *f);
    if (!f || !(f->name = strndup(name, size))) {
        free(f);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    f->module = m;
    f->loads = !m->ctx;
    f->block[0] = f->block[1] = f->block[2] = 1;
    f->max_dynamic_shared = 49152;
    f->next = m->functions;
    m->functions = f;
    m->count++;
    *function = f;
    return CUDA_SUCCESS;
}

static CUresult add_global(CUmodule m, const char *name, size_t name_size, size_t size, enum block_kind kind) {
    struct global *g = calloc(1, sizeof *g);
    CUresult ret = g && (g->name = strndup(name, name_size)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (ret == CUDA_SUCCESS) g->size = size;
    if (ret == CUDA_SUCCESS && m->ctx) ret = allocate(m->ctx, size, kind, NULL, &g->at);
    if (ret != CUDA_SUCCESS) {
        if (g) free(g->name);
        free(g);
        return ret;
    }
    g->next = m->globals;
    m->globals = g;
    return CUDA_SUCCESS;
}

// read_time reads "[BASE_NS [PER_BLOCK_NS]] [argument]".
static bool read_time(const char *at, CUfunction f) {
    uint64_t *to[] = {&f->base_ns, &f->per_block_ns};
    for (unsigned n = 0;; n++) {
        char *end;
        at += strspn(at, " \t\r");
        f->first_argument_ns = strncmp(at, "argument", 8) == 0;
        if (f->first_argument_ns) at += 8 + strspn(at + 8, " \t\r");
        if (!*at || f->first_argument_ns) return !*at;
        if (n == 2 || *at < '0' || *at > '9') return false;
        *to[n] = strtoull(at, &end, 10);
        at = end;
    }
}

// read_line reads one line of our own; in a comment of PTX the kernel is there already.
static CUresult read_line(CUmodule m, const char *line, bool comment) {
    CUresult bad = comment ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
    char what[16];
    int at = 0, end = 0;
    if (sscanf(line, "%15s %n%*s%n", what, &at, &end) != 1 || end <= at) return bad;
    const char *name = line + at;
    char *named = strndup(name, (size_t)(end - at));
    if (!named) return CUDA_ERROR_OUT_OF_MEMORY;
    CUfunction f = module_function(m, named);
    size_t bytes;
    CUresult ret = bad;
    free(named);
    if (strcmp(what, "kernel") == 0 && comment == (f != NULL)) {
        const char *time = line + end + strspn(line + end, " \t");
        if (!comment && (*time < '0' || *time > '9')) return bad;
        ret = f ? CUDA_SUCCESS : add_function(&f, m, name, (size_t)(end - at));
        if (ret != CUDA_SUCCESS) return ret;
        f->per_wave_ns = 0;
        bool ok = read_time(time, f) && !(comment && f->first_argument_ns && !f->params);
        ret = ok ? CUDA_SUCCESS : bad;
    } else if (strcmp(what, "code") == 0 && f && sscanf(line + end, "%zu", &bytes) == 1) {
        f->code_bytes = bytes;
        f->loads = true;
        ret = CUDA_SUCCESS;
    } else if (strcmp(what, "global") == 0 && !comment && sscanf(line + end, "%zu", &bytes) == 1) {
        ret = add_global(m, name, (size_t)(end - at), bytes, BLOCK_PLAIN);
    }
    return ret;
}

static CUresult read_part(CUmodule m, const char *text, size_t size, bool comment) {
    char *line = strndup(text, size);
    if (!line) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult ret = read_line(m, line, comment);
    free(line);
    return ret;
}

static CUresult read_text(CUmodule m, const struct image *image) {
    const char *end = image->text + image->size;
    for (const char *p = image->text, *newline; p < end; p = newline + 1) {
        newline = memchr(p, '\n', (size_t)(end - p));
        if (!newline) newline = end;
        if (newline > p) CHECK(read_part(m, p, (size_t)(newline - p), false));
    }
    return CUDA_SUCCESS;
}

static CUresult visit_kernel(void *module, const struct ptx_kernel *k) {
    CUfunction f;
    CHECK(add_function(&f, module, k->name, k->name_size));
    for (CUfunction other = f->next; other; other = other->next)
        if (strcmp(f->name, other->name) == 0) return CUDA_ERROR_INVALID_PTX;
    f->per_wave_ns = WAVE_NS;
    size_t n = k->count * sizeof *k->sizes;
    f->params = k->count;
    f->param_sizes = malloc(n + 1);
    f->param_offsets = malloc(n + 1);
    if (!f->param_sizes || !f->param_offsets) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(f->param_sizes, k->sizes, n);
    memcpy(f->param_offsets, k->offsets, n);
    return CUDA_SUCCESS;
}

static CUresult visit_global(void *module, const struct ptx_global *g) {
    return add_global(module, g->name, g->name_size, g->size, g->managed ? BLOCK_MANAGED : BLOCK_PLAIN);
}

static CUresult visit_comment(void *module, const char *text, size_t size) { return read_part(module, text, size, true); }

void jit_log(const struct jit *jit, const char *error) {
    static const CUjit_option buffers[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER},
                              sizes[] = {CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    for (unsigned which = 0; jit && jit->options && jit->values && which < 2; which++) {
        void **buffer = NULL, **size = NULL;
        for (unsigned i = 0; i < jit->n; i++) {
            if (jit->options[i] == buffers[which]) buffer = &jit->values[i];
            if (jit->options[i] == sizes[which]) size = &jit->values[i];
        }
        size_t room = size ? (uint32_t)(uintptr_t)*size : 0, n = 0;
        if (buffer && *buffer && room) {
            snprintf(*buffer, room, "%s", which ? error : "");
            n = strlen(*buffer);
        }
        if (size) *size = (void *)n;
    }
}

static CUresult read_ptx(CUmodule m, const struct image *image, struct jit *jit) {
    struct ptx_visitor visitor = {m, visit_kernel, visit_global, visit_comment};
    unsigned line;
    char error[128] = "";
    CUresult ret = ptx_read(image->text, image->size, &visitor, &line);
    if (ret == CUDA_ERROR_INVALID_PTX)
        snprintf(error, sizeof error, "ptxas application ptx input, line %u; fatal   : the simulated GPU cannot read this", line);
    jit_log(jit, error);
    return ret;
}

CUresult load_code(CUfunction f) {
    CUresult ret = CUDA_SUCCESS;
    if (f->module->image.text) CHECK(kernel_function(f, &f));
    pthread_mutex_lock(&lazily);
    if (f->code_bytes && !f->code) ret = allocate(f->module->ctx, f->code_bytes, BLOCK_PLAIN, NULL, &f->code);
    pthread_mutex_unlock(&lazily);
    return ret;
}

CUresult module_load(CUmodule *module, CUcontext ctx, const struct image *image, struct jit *jit) {
    CUmodule m = calloc(1, sizeof *m);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    m->ctx = ctx;
    m->life = ctx ? ctx->id : 0;
    CUresult ret = image->ptx ? read_ptx(m, image, jit) : read_text(m, image);
    if (ret != CUDA_SUCCESS) {
        module_unload(m);
        return ret;
    }
    *module = m;
    return CUDA_SUCCESS;
}

static CUresult load(CUmodule *module, const void *image, size_t size, struct jit *jit) {
    CUcontext ctx;
    struct image found;
    NEED(module && image);
    CHECK(need_context(&ctx));
    CHECK(image_find(&found, image, size));
    return module_load(module, ctx, &found, jit);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) { return load(module, image, SIZE_MAX, NULL); }

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n,
                            CUjit_option *options, void **values) {
    return load(module, image, SIZE_MAX, &(struct jit){n, options, values});
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    return cuModuleLoadData(module, image);
}

CUresult image_read(const char *path, char **image, size_t *size) {
    struct stat st;
    NEED(path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_FILE_NOT_FOUND;
    size_t room = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? (size_t)st.st_size : 0;
    ssize_t n = (*image = malloc(room + 1)) ? read(fd, *image, room) : -1;
    close(fd);
    if (n > 0) {
        *size = (size_t)n;
        return CUDA_SUCCESS;
    }
    free(*image);
    return CUDA_ERROR_INVALID_IMAGE;
}

CUresult cuModuleLoad(CUmodule *module, const char *path) {
    char *image;
    size_t size;
    CHECK(image_read(path, &image, &size));
    CUresult ret = load(module, image, size, NULL);
    free(image);
    return ret;
}

CUresult cuModuleUnload(CUmodule module) {
    INITIALIZED;
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    module_unload(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    NEED(mode);
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    NEED(function && name);
    INITIALIZED;
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    CUfunction f = module_function(module, name);
    if (!f) return CUDA_ERROR_NOT_FOUND;
    *function = f;
    return load_code(f);
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module) {
    NEED(count && module);
    *count = module->count;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *at, size_t *bytes, CUmodule module, const char *name) {
    NEED(name);
    INITIALIZED;
    if (!module) return CUDA_ERROR_INVALID_HANDLE;
    for (struct global *g = module->globals; g; g = g->next)
        if (strcmp(g->name, name) == 0) {
            if (at) *at = g->at;
            if (bytes) *bytes = g->size;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}
