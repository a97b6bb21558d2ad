// SPDX-License-Identifier: Apache-2.0
//
// internal.h: what the files of the simulated libcuda.so.1 share.
//
// Invariants:
// - Before cuInit, and in a forked child, every call answers NOT_INITIALIZED.
// - A call that needs a context answers INVALID_CONTEXT without one.
// - Handles given to programs are pointers to the records below; a NULL or a
//   destroyed one is refused where that can be told cheaply.
#ifndef VERNIER_SIMGPU_CUDA_INTERNAL_H
#define VERNIER_SIMGPU_CUDA_INTERNAL_H

// Everything else in the library is hidden; the API's own names are exported.
#pragma GCC visibility push(default)
#include "cuda.h"
#pragma GCC visibility pop

#include "image.h"

#include "../mps/wire.h"
#include "../state/state.h"

#include <pthread.h>

// A device as CUDA counts them: a permitted GPU, or one MIG instance.
struct ordinal {
    unsigned dev;     // index in the state file
    unsigned gi, ci;  // SIM_WHOLE_GPU outside MIG
    struct sim_device *d;
    const struct sim_model *m;
};

extern struct sim_state *cu;   // NULL before cuInit
extern struct sim_client *me;  // this process's slot
extern struct ordinal ordinals[SIM_MAX_DEVICES];
extern int ordinal_count;

struct CUstream_st {
    CUcontext ctx;
    _Atomic uint64_t last;  // position in the device's queue of its newest work
    unsigned flags;
    int priority;
    unsigned long long id;
    CUgraph capture;  // not NULL while work is recorded instead of queued
    bool origin;      // the stream that began that capture
    bool strict;      // in the global mode
    bool spoilt;      // by itself; those in the global mode together: began_at
    unsigned began_at;
    _Atomic unsigned calls;  // host functions not yet run
    struct CUstream_st *next;
};

struct CUctx_st {
    int ordinal;
    unsigned dev;  // ordinals[ordinal].dev
    unsigned flags, api_version;
    bool primary;
    unsigned retained;
    _Atomic bool destroyed;
    unsigned long long id;
    _Atomic uint32_t peers;  // devices whose memory it may use, one bit each
    size_t limits[CU_LIMIT_MAX];
    CUfunc_cache cache;
    CUsharedconfig shared;
    struct CUstream_st legacy, per_thread;
    struct CUstream_st *streams;
};

// context.c
extern _Thread_local CUcontext current __attribute__((tls_model("initial-exec")));
CUresult need_context(CUcontext *ctx);
CUcontext context_primary(CUdevice dev);  // live or not
CUresult context_stream(CUstream h, CUstream *stream);

// init.c: whether name is an ordinal's index or (cut short) UUID.
bool is_named(const struct ordinal *o, unsigned index, const char *name);

// export_table.c: the runtime library is told that a context ends.
void private_end(CUcontext ctx);

// device.c
CUresult need_device(CUdevice dev, struct ordinal **o);

// mps.c: this process as a client of the multi-process service.
CUresult mps_connect(struct mps_grant *grant);
CUresult mps_limits(const struct mps_grant *grant);
CUresult mps_room(struct ordinal *o);

// va.c: addresses. Sizes are rounded to 512 bytes.
enum block_kind { BLOCK_PLAIN, BLOCK_MANAGED, BLOCK_POOL, BLOCK_RESERVED, BLOCK_MAPPED, BLOCK_IPC, BLOCK_GRAPH };

struct block {
    CUdeviceptr at;
    size_t size, span;  // asked for (rounded), and its share of the address range
    enum block_kind kind;
    unsigned dev;
    CUcontext ctx;
    CUmemoryPool pool;
    void *owner;    // BLOCK_GRAPH: its graph_alloc
    size_t backed;  // bytes that real pages may stand behind
    unsigned long long id;
    int hold;  // on another process's memory, -1 for none
    struct block *next;
};

bool va_ready(void);
bool va_contains(CUdeviceptr at);
unsigned long long va_id(void);
struct block *va_take(size_t size, size_t alignment);
void va_insert(struct block *b);
struct block *va_find(CUdeviceptr at);
struct block *va_around(CUdeviceptr at);
void va_remove(struct block *b);
void va_give(struct block *b);
void va_lock(void);
void va_unlock(void);
void va_wait(void);
void va_wake(void);
size_t va_round(size_t size);
void va_each(void (*visit)(struct block *, void *), void *arg);

// ipc.c: what a process passes on so that another can use its memory.
struct ticket {
    uint64_t magic, kind;
    struct sim_memory memory;
};
enum { TICKET_IPC = 1, TICKET_VMM, TICKET_POOL, TICKET_POINTER, TICKET_MULTICAST };
struct ticket ticket_new(unsigned kind, unsigned dev, unsigned long long id, size_t size);
bool ticket_good(const struct ticket *t, unsigned kind);
int ticket_to_fd(const void *content, size_t size);
bool ticket_from_fd(int fd, void *content, size_t size);
CUresult ticket_open(const struct ticket *t, CUcontext ctx, CUmemoryPool pool, CUdeviceptr *at);

// vmm.c: the mapping around an address; wants va_lock held.
struct block *vmm_around(CUdeviceptr at);

// vmm.c and multicast.c: what keeps memory beside handles and mappings; all of it
// wants va_lock held. vmm_hold gives the device.
struct physical;
struct physical *vmm_physical(CUmemGenericAllocationHandle handle);
struct physical *vmm_behind(CUdeviceptr at);
bool vmm_has_tiles(const struct physical *p, CUdevice device, size_t offset, size_t bytes);
CUdevice vmm_hold(struct physical *p);
void vmm_let_go(struct physical *p);

// A multicast object is memory without bytes of its own, NULL for other memory. The
// first takes the lock.
struct multicast;
CUresult vmm_object(CUmemGenericAllocationHandle *handle, struct multicast *m, size_t size);
struct multicast *vmm_multicast(struct physical *p);
CUresult multicast_import(CUmemGenericAllocationHandle *handle, size_t size, unsigned long long types);
unsigned long long multicast_types(const struct multicast *m);
void multicast_end(struct multicast *m);

// sparse.c: the tiles of an array of these levels, whose elements and the whole of
// which take so many bytes; sparse_end lets go of what is mapped there.
struct sparse;
struct sparse *sparse_new(const CUDA_ARRAY3D_DESCRIPTOR *desc, size_t element, unsigned levels, size_t bytes);
void sparse_end(struct sparse *tiles);

// array.c: NULL for an array with memory of its own. A context takes its arrays
// with it.
struct sparse *array_tiles(CUarray array);
struct sparse *mipmap_tiles(CUmipmappedArray mipmap);
void arrays_die(CUcontext ctx);

// alloc.c
CUresult allocate(CUcontext ctx, size_t size, enum block_kind kind, CUmemoryPool pool,
                  CUdeviceptr *at);
CUresult release(CUdeviceptr at);
CUresult lost_or(unsigned dev, CUresult otherwise);

// pool.c
bool pool_take(CUmemoryPool pool, unsigned dev, size_t size);
void pool_freed(CUmemoryPool pool, unsigned dev, size_t size);

// copy.c: the bytes without the time, and the time of so many bytes.
CUresult copy_bytes(CUdeviceptr to, CUdeviceptr from, size_t n);
CUresult fill_bytes(CUdeviceptr to, size_t pitch, unsigned value, unsigned size, size_t width,
                    size_t height);
CUresult copy_time(CUstream h, size_t n, bool wait);
CUresult copy_now(CUstream h, CUgraphNodeType type, bool *now);

// backing.c
void backing_write(CUdeviceptr to, const void *from, size_t n);
void backing_read(void *to, CUdeviceptr from, size_t n);
void backing_drop(struct block *b);

// work.c: the queue of this process on a device.
CUresult work_add(unsigned dev, uint64_t duration_ns, _Atomic uint64_t *position);
uint64_t work_queued(unsigned dev);
bool work_done(unsigned dev, uint64_t position);
CUresult work_wait(unsigned dev, uint64_t position);
uint64_t work_time(unsigned dev, uint64_t position);

// stream.c
uint64_t stream_position(CUstream s);
CUresult stream_wait(CUstream s);
CUresult stream_add(CUstream s, uint64_t duration_ns);
void stream_link(CUcontext ctx, CUstream s);

// module.c
struct global {
    char *name;
    CUdeviceptr at;
    size_t size;
    struct global *next;
};

struct CUmod_st {
    CUcontext ctx;            // NULL for a library
    unsigned long long life;  // of the context
    CUfunction functions;
    struct global *globals;
    unsigned count;
    struct image image;  // a library's own copy
    CUmodule loaded;  // a library's modules, linked by the same
};

struct CUfunc_st {
    CUmodule module;
    char *name;
    uint64_t base_ns, per_block_ns, per_wave_ns;
    unsigned params;  // 0 where they are not known
    uint32_t *param_sizes, *param_offsets;
    bool first_argument_ns;  // the first kernel argument adds nanoseconds
    unsigned block[3], shared;  // launch state of the calls from before CUDA 4
    int max_dynamic_shared;
    bool loads;         // something of it, when it is used
    size_t code_bytes;  // loaded at its first use; 0 for with its module
    CUdeviceptr code;   // 0 before that
    struct CUfunc_st *next;
};
// What a program wants to be told of the compilation.
struct jit {
    unsigned n;
    CUjit_option *options;
    void **values;
};
// Writes a program's two logs: nothing, or what is wrong.
void jit_log(const struct jit *jit, const char *error);
CUresult load_code(CUfunction f);
CUresult module_load(CUmodule *module, CUcontext ctx, const struct image *image, struct jit *jit);
bool module_lives(const struct CUmod_st *m);
void module_unload(CUmodule m);
CUfunction module_function(CUmodule m, const char *name);
CUresult image_read(const char *path, char **image, size_t *size);  // to be freed

// library.c: a kernel's function in the current context.
CUresult kernel_function(CUfunction kernel, CUfunction *f);

// function.c: how many blocks of so many threads a processor holds.
uint64_t blocks_per_sm(const struct sim_model *m, uint64_t threads);

uint64_t kernel_time(CUfunction f, uint64_t blocks, uint64_t threads, void **params, void **extra);

// capture.c: whether this thread may not ask now; the end of a capture to come to
// nothing; and what a stream takes with it.
bool capture_forbids(void);
void capture_spoil(CUstream s);
void capture_gone(CUstream s);

// graph.c
CUresult graph_capture(CUgraph g, CUgraphNodeType type, uint64_t duration_ns);
CUresult graph_capture_alloc(CUgraph g, int ordinal, size_t size, CUdeviceptr *at);
CUresult graph_capture_free(CUgraph g, CUdeviceptr at);
CUresult graph_new(CUgraph *g);

// graph_memory.c: whether it was in use; wants va_lock held.
bool graph_memory_free(struct block *b);

#define CHECK(call)                            \
    do {                                       \
        CUresult ret_ = (call);                \
        if (ret_ != CUDA_SUCCESS) return ret_; \
    } while (0)

#define NOW(n, call)                     \
    do {                                 \
        CHECK(call);                     \
        return copy_time(NULL, n, true); \
    } while (0)

#define LATER(stream, type, n, call)           \
    do {                                       \
        bool now_;                             \
        CHECK(copy_now(stream, type, &now_));  \
        if (!now_) return CUDA_SUCCESS;        \
        CHECK(call);                           \
        return copy_time(stream, n, false);    \
    } while (0)

#define NEED(arg) \
    if (!(arg)) return CUDA_ERROR_INVALID_VALUE

// The twins of calls that take a stream, or work on the default one (see cuda.h):
// all streams of a context run in one order here, so they are the same call.
#define PTSZ(name) extern __typeof__(name) name##_ptsz __attribute__((alias(#name)))
#define PTDS(name) extern __typeof__(name) name##_ptds __attribute__((alias(#name)))

#define INITIALIZED \
    if (!me) return CUDA_ERROR_NOT_INITIALIZED

#endif
