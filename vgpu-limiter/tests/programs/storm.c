// SPDX-License-Identifier: Apache-2.0
//
// storm SEED THREADS: threads that take and give back memory on every path, at
// random and each other's, on the first two devices. Standard input says what to
// do; each line is answered once all threads rest:
//
//   run N     every thread makes N random moves
//   clear     everything is given back
//
// The answer is the code of the first call that failed for another reason than
// want of memory, and what it was; 0 if there was none. Whether a process that is
// killed meanwhile leaves anything behind is for others to see.

#include "cuda.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define THINGS 48 // of a process
#define MAPS 3
#define KIB ((size_t)1 << 10)
#define GRANULE ((size_t)2 << 20)

// The last two by a single thread only: what they take is measured, and found late
// where other threads allocate meanwhile.
enum kind {
    NOTHING, PLAIN, ASYNC, VIRTUAL, ARRAY, MIPMAP, CONTEXT, GRAPH, POOL, BORROWED, RECEIVED, MULTICAST, SPARSE, MODULE, LIBRARY
};

struct thing {
    pthread_mutex_t held; // by a thread, while it is changed: a lock that sanitizers know
    enum kind kind;
    int device;
    CUdeviceptr ptr;
    union {
        CUarray array;
        CUmipmappedArray mipmap;
        CUmodule module;
        CUlibrary library;
        CUcontext context;
        CUgraphExec exec;
        CUmemoryPool pool;
        CUmemGenericAllocationHandle object;
    };
    CUmemGenericAllocationHandle handle;
    int handles, live, descriptor;
    CUdeviceptr map[MAPS];
};

static struct thing things[THINGS] = {[0 ... THINGS - 1] = {.held = PTHREAD_MUTEX_INITIALIZER}};
static unsigned kinds; // how many of them are taken
static CUcontext context[2];
static CUstream stream[2][3]; // the first is the default one
static CUmemoryPool lasting[2][2];
static atomic_int failure;
static const char *_Atomic failed_call;

static _Thread_local uint64_t state;

static unsigned below(unsigned n) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (unsigned)(state >> 33) % n;
}

// Notes an error that no call here should have, and tells whether the call worked.
static bool good(const char *call, CUresult result) {
    int none = 0;
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY &&
        atomic_compare_exchange_strong(&failure, &none, (int)result))
        failed_call = call;
    return result == CUDA_SUCCESS;
}
#define TRY(function, ...) good(#function, function(__VA_ARGS__))

#include "board.h"
#include "makes.h"

static void unmap(struct thing *t, int i) {
    size_t bytes;
    TRY(cuMemGetAddressRange_v2, &(CUdeviceptr){0}, &bytes, t->map[i]);
    TRY(cuMemUnmap, t->map[i], bytes);
    TRY(cuMemAddressFree, t->map[i], bytes);
    t->map[i] = 0;
}

// One step in the life of memory made by cuMemCreate; it ends without handles and
// mappings.
static void change_virtual(struct thing *t) {
    int i = (int)below(MAPS);
    switch (below(4)) {
    case 0:
        if (t->map[i] == 0 && t->handles != 0 && TRY(cuMemAddressReserve, &t->map[i], GRANULE, 0, 0, 0) &&
            !TRY(cuMemMap, t->map[i], GRANULE, 0, t->handle, 0)) {
            TRY(cuMemAddressFree, t->map[i], GRANULE);
            t->map[i] = 0;
        }
        break;
    case 1:
        if (t->map[i] != 0)
            unmap(t, i);
        break;
    case 2:
        if (t->map[i] != 0)
            t->handles += TRY(cuMemRetainAllocationHandle, &t->handle, (void *)(uintptr_t)(t->map[i] + KIB));
        break;
    case 3:
        if (t->handles > (t->live > 0))
            t->handles -= TRY(cuMemRelease, t->handle);
        break;
    }
    if (t->handles == 0 && t->map[0] == 0 && t->map[1] == 0 && t->map[2] == 0)
        t->kind = NOTHING;
}

static void change_graph(struct thing *t) {
    if (t->live) {
        TRY(cuMemFree_v2, t->ptr);
        t->live = 0;
    } else if (below(2) && TRY(cuGraphLaunch, t->exec, some_stream(t->device))) {
        t->live = t->ptr != 0;
    } else if (below(2)) {
        TRY(cuDeviceGraphMemTrim, t->device);
    }
}

static void end_of(struct thing *t) {
    switch (t->kind) {
    case PLAIN:
        lend(t, true);
        if (below(4) == 0) {
            TRY(cuMemFreeAsync, t->ptr, some_stream(t->device));
            break;
        }
        TRY(cuMemFree_v2, t->ptr);
        break;
    case POOL:
        if (t->live)
            TRY(cuMemPoolDestroy, t->pool);
        // fallthrough
    case ASYNC:
        if (below(4) == 0)
            TRY(cuMemFree_v2, t->ptr);
        else
            TRY(cuMemFreeAsync, t->ptr, some_stream(t->device));
        break;
    case VIRTUAL:
    case RECEIVED:
        pass_on(t, true);
        if (t->live > 0 && below(2)) {
            close(t->descriptor);
            t->live = 0;
        }
        for (int i = 0; i < MAPS; i++)
            if (t->map[i] != 0)
                unmap(t, i);
        for (; t->handles != 0; t->handles--)
            TRY(cuMemRelease, t->handle);
        if (t->live > 0) // until now it has kept the memory
            close(t->descriptor);
        break;
    case ARRAY:
        TRY(cuArrayDestroy, t->array);
        break;
    case SPARSE:
        if (t->handles)
            TRY(cuMemRelease, t->handle);
        if (!t->live) {
            TRY(cuArrayDestroy, t->array);
            break;
        }
        // fallthrough
    case MIPMAP:
        TRY(cuMipmappedArrayDestroy, t->mipmap);
        break;
    case MODULE:
        TRY(cuModuleUnload, t->module);
        break;
    case LIBRARY:
        TRY(cuLibraryUnload, t->library);
        break;
    case CONTEXT:
        TRY(cuCtxDestroy_v2, t->context);
        break;
    case GRAPH:
        if (t->live)
            TRY(cuMemFree_v2, t->ptr);
        TRY(cuGraphExecDestroy, t->exec);
        break;
    case BORROWED:
        TRY(cuIpcCloseMemHandle, t->ptr);
        break;
    case MULTICAST:
        if (below(2))
            TRY(cuMulticastUnbind, t->object, t->device, 0, GRANULE);
        TRY(cuMemRelease, t->object);
        break;
    case NOTHING:
        break;
    }
    t->kind = NOTHING;
}

static void move(struct thing *t) {
    if (t->kind == NOTHING) {
        memset(&t->ptr, 0, sizeof *t - offsetof(struct thing, ptr));
        t->device = (int)below(2);
        t->kind = 1 + below(kinds);
        TRY(cuCtxSetCurrent, context[t->device]);
        if (!make(t))
            t->kind = NOTHING;
        return;
    }
    TRY(cuCtxSetCurrent, context[t->device]);
    if (t->kind == VIRTUAL && below(8) == 0)
        pass_on(t, false);
    else if ((t->kind == VIRTUAL || t->kind == RECEIVED) && below(16))
        change_virtual(t);
    else if (t->kind == SPARSE && below(12))
        change_sparse(t);
    else if (t->kind == GRAPH && below(4))
        change_graph(t);
    else if (t->kind == PLAIN && below(4) == 0)
        lend(t, false);
    else if (t->kind == POOL && t->live && below(2))
        t->live = !TRY(cuMemPoolDestroy, t->pool);
    else
        end_of(t);
}

static unsigned seed, moves, rounds;
static pthread_barrier_t begin, end;

static void *storm(void *number) {
    for (;;) {
        pthread_barrier_wait(&begin);
        state = ((uint64_t)seed << 32) + rounds * 64 + (uint64_t)(uintptr_t)number;
        for (unsigned i = 0; i < moves; i++) {
            struct thing *t = &things[below(THINGS)];
            if (below(64) == 0)
                TRY(cuMemPoolTrimTo, lasting[below(2)][below(2)], below(2) * 512 * KIB);
            if (pthread_mutex_trylock(&t->held) != 0)
                continue;
            move(t);
            pthread_mutex_unlock(&t->held);
        }
        pthread_barrier_wait(&end);
    }
    return NULL;
}

static void clear(void) {
    for (int i = 0; i < THINGS; i++) {
        TRY(cuCtxSetCurrent, context[things[i].device]);
        end_of(&things[i]);
    }
    for (int d = 0; d < 2; d++) {
        TRY(cuDeviceGraphMemTrim, d);
        for (int i = 0; i < 2; i++)
            TRY(cuMemPoolTrimTo, lasting[d][i], 0);
    }
}

// Makes what lasts, and answers whether that fits.
static bool prepare(void) {
    cuuint64_t forever = UINT64_MAX;
    bool made = TRY(cuInit, 0);
    for (int d = 0; made && d < 2; d++) {
        CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, d}};
        made = TRY(cuDevicePrimaryCtxRetain, &context[d], d) && TRY(cuCtxSetCurrent, context[d]);
        for (int i = 0; made && i < 2; i++)
            made = TRY(cuStreamCreate, &stream[d][1 + i], CU_STREAM_NON_BLOCKING) && TRY(cuMemPoolCreate, &lasting[d][i], &props);
        made = made && TRY(cuMemPoolSetAttribute, lasting[d][0], CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &forever);
    }
    return made;
}

int main(int argc, char **argv) {
    char line[64];
    pthread_t thread;
    unsigned threads = argc == 3 ? (unsigned)atoi(argv[2]) : 0;
    if (threads == 0 || !prepare()) {
        fprintf(stderr, "storm: %s: error %d\n", failed_call != NULL ? failed_call : "no room", failure);
        return 1;
    }
    seed = (unsigned)atoi(argv[1]);
    kinds = threads == 1 ? LIBRARY : SPARSE;
    setvbuf(stdout, NULL, _IOLBF, 0);
    pthread_barrier_init(&begin, NULL, threads + 1);
    pthread_barrier_init(&end, NULL, threads + 1);
    for (unsigned i = 0; i < threads; i++)
        if (pthread_create(&thread, NULL, storm, (void *)(uintptr_t)i) != 0)
            return 1;
    for (; fgets(line, sizeof line, stdin) != NULL; rounds++) {
        size_t free_bytes, total;
        if (sscanf(line, "run %u", &moves) == 1) {
            pthread_barrier_wait(&begin);
            pthread_barrier_wait(&end);
        } else {
            clear();
        }
        TRY(cuMemGetInfo_v2, &free_bytes, &total); // what pools have given back is noticed here
        printf("rests %d %s\n", failure, failed_call != NULL ? failed_call : "-");
    }
    return 0;
}
