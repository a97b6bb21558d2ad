// SPDX-License-Identifier: Apache-2.0
//
// Memory by each way that the driver has, up to its end.
#include "kit.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIECES 8192

// What one piece is, by its way.
union piece {
    CUdeviceptr at;
    CUarray array;
    CUmipmappedArray mipmap;
};

static CUstream stream;
static CUmemoryPool pool;
static CUmemGenericAllocationHandle handle[PIECES];
static size_t size[PIECES];

static CUresult plain(union piece *p, int i) { return p_cuMemAlloc_v2(&p->at, size[i]); }
static CUresult managed(union piece *p, int i) { return p_cuMemAllocManaged(&p->at, size[i], CU_MEM_ATTACH_GLOBAL); }
static CUresult free_plain(union piece *p, int i) { return (void)i, p_cuMemFree_v2(p->at); }

static CUresult pitch(union piece *p, int i) {
    size_t row;
    return p_cuMemAllocPitch_v2(&p->at, &row, 1 << 16, size[i] >> 16, 4);
}

static CUresult async(union piece *p, int i) {
    CUresult r = p_cuMemAllocAsync(&p->at, size[i], stream);
    return r ? r : p_cuStreamSynchronize(stream);
}

static CUresult from_pool(union piece *p, int i) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    if (!pool) MUST(cuMemPoolCreate, &pool, &props);
    CUresult r = p_cuMemAllocFromPoolAsync(&p->at, size[i], pool, stream);
    return r ? r : p_cuStreamSynchronize(stream);
}

static CUresult free_async(union piece *p, int i) { return (void)i, p_cuMemFreeAsync(p->at, stream); }

static CUresult virtual(union piece *p, int i) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult r = p_cuMemCreate(&handle[i], size[i], &prop, 0);
    if (r) return r;
    MUST(cuMemAddressReserve, &p->at, size[i], 0, 0, 0);
    MUST(cuMemMap, p->at, size[i], 0, handle[i], 0);
    MUST(cuMemRelease, handle[i]); // the mapping keeps it
    MUST(cuMemSetAccess, p->at, size[i], &access, 1);
    return r;
}

static CUresult free_virtual(union piece *p, int i) {
    CUresult r = p_cuMemUnmap(p->at, size[i]);
    return r ? r : p_cuMemAddressFree(p->at, size[i]);
}

// Elements of 16 bytes, 64 Ki of them a MiB.
static CUresult flat(union piece *p, int i) {
    CUDA_ARRAY_DESCRIPTOR d = {1024, size[i] / 16 / 1024, CU_AD_FORMAT_FLOAT, 4};
    return p_cuArrayCreate_v2(&p->array, &d);
}

static CUresult solid(union piece *p, int i) {
    CUDA_ARRAY3D_DESCRIPTOR d = {256, 256, size[i] / MIB, CU_AD_FORMAT_FLOAT, 4, 0};
    return p_cuArray3DCreate_v2(&p->array, &d);
}

static CUresult free_array(union piece *p, int i) { return (void)i, p_cuArrayDestroy(p->array); }

// The second level takes a quarter of the first; size counts the first.
static CUresult mipmap(union piece *p, int i) {
    CUDA_ARRAY3D_DESCRIPTOR d = {1024, size[i] / 16 / 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0};
    return p_cuMipmappedArrayCreate(&p->mipmap, &d, 2);
}

static CUresult free_mipmap(union piece *p, int i) { return (void)i, p_cuMipmappedArrayDestroy(p->mipmap); }

static CUresult node(union piece *p, int i) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
        .bytesize = size[i]};
    CUgraph graph;
    CUgraphNode made;
    CUgraphExec exec;
    MUST(cuGraphCreate, &graph, 0);
    CUresult r = p_cuGraphAddMemAllocNode(&made, graph, NULL, 0, &params);
    if (!r) r = p_cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (!r) {
        r = p_cuGraphLaunch(exec, stream);
        if (!r) r = p_cuStreamSynchronize(stream);
        p_cuGraphExecDestroy(exec);
    }
    p_cuGraphDestroy(graph);
    p->at = params.dptr;
    return r;
}

// What streams and graphs have freed stays with their pools until these are trimmed.
static void trim(void) {
    CUmemoryPool own;
    MUST(cuCtxSynchronize);
    if (p_cuDeviceGetDefaultMemPool && p_cuDeviceGetDefaultMemPool(&own, 0) == CUDA_SUCCESS) p_cuMemPoolTrimTo(own, 0);
    if (p_cuDeviceGraphMemTrim) p_cuDeviceGraphMemTrim(0);
    if (pool) MUST(cuMemPoolDestroy, pool);
    pool = NULL;
}

static size_t held;
static int pieces;
static union piece piece[PIECES];

// Takes ever smaller pieces until not even 2 MiB are to be had, or most is. It never asks
// for what would go beyond most.
static CUresult fill(CUresult (*take_one)(union piece *, int), size_t most) {
    CUresult r = CUDA_SUCCESS;
    held = 0, pieces = 0;
    for (size_t bytes = 64 * MIB; bytes >= 2 * MIB; bytes /= 2)
        for (r = CUDA_SUCCESS; held + bytes <= most && pieces < PIECES; pieces++, held += bytes) {
            size[pieces] = bytes;
            if ((r = take_one(&piece[pieces], pieces)) != CUDA_SUCCESS) break;
        }
    return r;
}

void paths(size_t most) {
    static const struct {
        const char *name;
        CUresult (*take_one)(union piece *, int), (*free_one)(union piece *, int);
        void *needs;
    } ways[] = {
        {"plain", plain, free_plain, &p_cuMemAlloc_v2},
        {"pitch", pitch, free_plain, &p_cuMemAlloc_v2},
        {"managed", managed, free_plain, &p_cuMemAlloc_v2},
        {"async", async, free_async, &p_cuMemAllocAsync},
        {"pool", from_pool, free_async, &p_cuMemAllocFromPoolAsync},
        {"virtual", virtual, free_virtual, &p_cuMemCreate},
        {"array", flat, free_array, &p_cuMemAlloc_v2},
        {"array3d", solid, free_array, &p_cuMemAlloc_v2},
        {"mipmap", mipmap, free_mipmap, &p_cuMemAlloc_v2},
        {"graph", node, free_plain, &p_cuGraphAddMemAllocNode},
    };
    use(0);
    MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    printf("{\"paths\":[");
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        size_t before = free_bytes();
        bool there = *(void **)ways[w].needs != NULL;
        CUresult r = there ? fill(ways[w].take_one, most) : CUDA_SUCCESS, ended = CUDA_SUCCESS;
        size_t least = free_bytes();
        for (int i = 0; there && i < pieces && ended == CUDA_SUCCESS; i++) ended = ways[w].free_one(&piece[i], i);
        trim();
        printf("%s{\"path\":\"%s\",\"there\":%s,\"held\":%zu,\"result\":%d,\"freeing\":%d,\"free_before\":%zu,"
               "\"free_full\":%zu,\"free_after\":%zu}",
               w ? "," : "", ways[w].name, there ? "true" : "false", there ? held : 0, r, ended, before, least, free_bytes());
    }
    printf("]}\n");
}

void take(size_t most) {
    use(0);
    CUresult r = fill(plain, most);
    printf("{\"pid\":%d,\"held\":%zu,\"result\":%d}\n", getpid(), held, r);
    while (getchar() != EOF) {
    }
}

// What a child says: the bytes that it holds, and the error that ended its asking for more.
static int said;

static void say(int result) {
    size_t line[2] = {held, (size_t)result};
    if (write(said, line, sizeof line) != sizeof line) _exit(1);
}

// Children are made before the driver is loaded, which no child may use otherwise. Each
// holds what it has until all have all that they get; one may get no context even.
void take_in_processes(int processes, size_t most) {
    int told[2], go[2];
    size_t sum = 0;
    int refused = 0;
    if (pipe(told) != 0 || pipe(go) != 0) fail("pipe", errno);
    for (int i = 0; i < processes; i++)
        if (fork() == 0) {
            close(go[1]);
            said = told[1];
            on_failure = say;
            use(0);
            say((int)fill(plain, most));
            _exit(read(go[0], &(char){0}, 1) < 0);
        }
    close(told[1]);
    for (int i = 0; i < processes; i++) {
        size_t line[2];
        if (read(told[0], line, sizeof line) != sizeof line) fail("a process ended early", 0);
        sum += line[0];
        refused += line[1] == CUDA_ERROR_OUT_OF_MEMORY;
    }
    close(go[1]);
    while (wait(NULL) > 0) {
    }
    printf("{\"held\":%zu,\"refused\":%d}\n", sum, refused);
}

void die_and_retake(size_t most) {
    int told[2], go[2], tries = 0;
    size_t theirs;
    CUdeviceptr at;
    if (pipe(told) != 0 || pipe(go) != 0) fail("pipe", errno);
    pid_t child = fork();
    if (child == 0) {
        close(go[1]);
        // The other's context needs memory too: it goes first.
        if (read(go[0], &(char){0}, 1) != 1) _exit(1);
        use(0);
        fill(plain, most);
        theirs = held;
        if (write(told[1], &theirs, sizeof theirs) < 0) _exit(1);
        pause();
        _exit(0);
    }
    close(told[1]);
    use(0);
    if (write(go[1], "", 1) != 1) fail("write", errno);
    if (read(told[0], &theirs, sizeof theirs) != sizeof theirs) fail("the child ended early", 0);
    CUresult while_it_lives = p_cuMemAlloc_v2(&at, theirs / 2), r;
    double from = now();
    kill(child, SIGKILL);
    do {
        r = p_cuMemAlloc_v2(&at, theirs / 2);
        tries++;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    } while (r == CUDA_ERROR_OUT_OF_MEMORY && now() - from < 20);
    printf("{\"held\":%zu,\"before\":%d,\"result\":%d,\"ms\":%.1f,\"tries\":%d}\n", theirs, while_it_lives, r,
           (now() - from) * 1e3, tries);
    waitpid(child, NULL, 0);
}

void freed_after(int pid, size_t bytes) {
    use(0);
    size_t before = free_bytes(), after;
    double from = now();
    if (kill(pid, SIGKILL) != 0) fail("kill", errno);
    do {
        after = free_bytes();
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    } while (after < before + bytes && now() - from < 20);
    printf("{\"before\":%zu,\"after\":%zu,\"ms\":%.1f}\n", before, after, (now() - from) * 1e3);
}

void peers(void) {
    enum { COUNT = 1024 };
    static unsigned there[COUNT], back[COUNT];
    CUcontext context[2];
    CUdeviceptr at[2];
    size_t before[2], after[2];
    int can = 0, count = 0, right = 1;
    use(0);
    MUST(cuDeviceGetCount, &count);
    if (count < 2) fail("there is one device only", count);
    for (int i = 0; i < 2; i++) {
        MUST(cuDevicePrimaryCtxRetain, &context[i], i);
        MUST(cuCtxSetCurrent, context[i]);
        before[i] = free_bytes();
        MUST(cuMemAlloc_v2, &at[i], 32 * MIB * (size_t)(i + 1));
        after[i] = free_bytes();
    }
    MUST(cuDeviceCanAccessPeer, &can, 0, 1);
    for (unsigned i = 0; i < COUNT; i++) there[i] = i * 3 + 1;
    MUST(cuCtxSetCurrent, context[0]);
    MUST(cuMemcpyHtoD_v2, at[0], there, sizeof there);
    MUST(cuMemcpyPeer, at[1], context[1], at[0], context[0], sizeof there);
    MUST(cuCtxSynchronize);
    MUST(cuCtxSetCurrent, context[1]);
    MUST(cuMemcpyDtoH_v2, back, at[1], sizeof back);
    right = memcmp(there, back, sizeof back) == 0;
    printf("{\"can_access\":%d,\"right\":%d,\"charged\":[%zu,%zu],\"links\":[", can, right, before[0] - after[0], before[1] - after[1]);
    for (int i = 0; i < 2; i++) { // of each device: what it can do for peers, and with the other one
        static const CUdevice_attribute shared[] = {
            CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
            CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
            CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED};
        for (unsigned a = 0; a < sizeof shared / sizeof *shared; a++) {
            int value = 0, result = p_cuDeviceGetAttribute(&value, shared[a], i);
            printf("%s%d,%d", i + a > 0 ? "," : "", result, value);
        }
        for (int a = CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK; a <= CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED; a++) {
            int value = 0, result = p_cuDeviceGetP2PAttribute(&value, (CUdevice_P2PAttribute)a, i, 1 - i);
            printf(",%d,%d", result, value);
        }
    }
    printf("]}\n");
}
