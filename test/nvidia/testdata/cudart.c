// SPDX-License-Identifier: Apache-2.0
//
// A program on the CUDA runtime (argument 1: its path; argument 2: "own" where each
// thread has a default stream of its own) that does what such programs do on every
// device it sees, asks for all memory that there is and for more, and says what it was
// told, nothing in figures of a device's size: on the whole of one GPU it says the same
// as on the slice of another.
#include "cudart.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define ONE ((struct dim3){1, 1, 1})

static size_t whole;  // of the device
static int failed;    // the exit status

static void wrong(const char *what) { printf("%s\n", what), failed = 1; }

static size_t left(void) {
    size_t bytes = 0, total = 0;
    int ret = cudaMemGetInfo(&bytes, &total);
    if (ret) printf("cudaMemGetInfo: %s\n", cudaGetErrorName(ret));
    whole = total;
    return bytes;
}

// What the device has less than at the beginning.
static size_t held(void) { return (left(), whole) - left(); }

// Says what a call returned, and what the device holds after it or has left.
#define SAY(call)                                                                             \
    do {                                                                                      \
        int ret_ = (call);                                                                    \
        bool little_ = left() < 256 * MIB;                                                    \
        printf("%s: %s, %zu %s\n", #call, cudaGetErrorName(ret_), little_ ? left() : held(),  \
               little_ ? "left" : "held");                                                    \
        if (ret_ != cudaGetLastError()) wrong("the last error is another");                \
    } while (0)

// Fills the device but for so many bytes.
static void *fill(size_t but) {
    void *p = NULL;
    int ret = cudaMalloc(&p, left() - but);
    printf("all but %zu: %s, %zu left\n", but, cudaGetErrorName(ret), left());
    return p;
}

// One way to allocate: with a little less than it needs, and with just so much.
#define WAY(make, unmake)                                                                     \
    do {                                                                                      \
        size_t before = left();                                                               \
        SAY(make);                                                                            \
        size_t need = before - left();                                                        \
        SAY(unmake);                                                                          \
        if (need >= 512) {                                                                    \
            void *rest = fill(need - 512);                                                    \
            SAY(make);                                                                        \
            SAY(cudaFree(rest));                                                              \
        }                                                                                     \
        void *rest = fill(need);                                                              \
        SAY(make);                                                                            \
        SAY(unmake);                                                                          \
        SAY(cudaFree(rest));                                                                  \
    } while (0)

static void memory(void) {
    static const struct channel one = {32, 0, 0, 0, 0};
    void *p = NULL, *more = NULL;
    size_t pitch;
    struct pitched box;
    SAY(cudaMalloc(&p, left()));
    SAY(cudaMalloc(&more, 1));
    SAY(cudaFree(p));
    SAY(cudaMalloc(&p, left() + 1));
    SAY(cudaMalloc(&p, 0));
    WAY(cudaMalloc(&p, 1), cudaFree(p));
    WAY(cudaMallocPitch(&p, &pitch, 1000, 1000), cudaFree(p));
    WAY(cudaMalloc3D(&box, ((struct extent){1000, 100, 10})), cudaFree(box.at));
    WAY(cudaMallocArray(&p, &one, 1000, 0, 0), cudaFreeArray(p));
    WAY(cudaMallocArray(&p, &one, 1000, 1000, 0), cudaFreeArray(p));
    WAY(cudaMalloc3DArray(&p, &one, ((struct extent){100, 100, 10}), 0), cudaFreeArray(p));
    WAY(cudaMallocMipmappedArray(&p, &one, ((struct extent){256, 256, 0}), 4, 0), cudaFreeMipmappedArray(p));
    WAY(cudaHostAlloc(&p, MIB, 0), cudaFreeHost(p));
}

// After everything else: in a process that has had managed memory the limiter charges
// less of the modules that CUDA 11 loads (vgpu-limiter/README.md).
static void managed(void) {
    void *p;
    WAY(cudaMallocManaged(&p, 3 * MIB, 1), cudaFree(p));
}

static void pools(int device) {
    void *p, *pool, *rest;
    struct pool_props props = {.kind = 1, .location = 1, .device = device};
    uint64_t threshold = UINT64_MAX;
    WAY(cudaMallocAsync(&p, 40 * MIB, NULL), cudaFreeAsync(p, NULL) + cudaDeviceSynchronize());
    SAY(cudaMemPoolCreate(&pool, &props));
    SAY(cudaMemPoolSetAttribute(pool, POOL_THRESHOLD, &threshold));
    SAY(cudaMallocFromPoolAsync(&p, 40 * MIB, pool, NULL));
    SAY(cudaFreeAsync(p, NULL));
    SAY(cudaDeviceSynchronize());
    SAY(cudaMalloc(&rest, left()));
    SAY(cudaMallocFromPoolAsync(&p, 40 * MIB, pool, NULL));
    SAY(cudaFreeAsync(p, NULL));
    SAY(cudaDeviceSynchronize());
    SAY(cudaFree(rest));
    SAY(cudaMemPoolTrimTo(pool, 0));
    SAY(cudaMemPoolDestroy(pool));
}

static void *grab(void *arg) {
    size_t *sum = arg;
    void *p;
    cudaSetDevice((int)*sum);
    for (*sum = 0; cudaMalloc(&p, MIB / 2) == SUCCESS;) *sum += MIB / 2;
    return cudaGetLastError() == OUT_OF_MEMORY ? NULL : arg;
}

// Threads get together all that there is; a new beginning frees it.
static void threads(int device) {
    pthread_t thread[4];
    size_t got[4], sum = 0, there;
    void *p, *other;
    SAY(cudaMalloc(&p, left() - 100 * MIB));
    there = left();
    for (int i = 0; i < 4; i++) got[i] = (size_t)device, pthread_create(&thread[i], NULL, grab, &got[i]);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], &other);
        if (other) wrong("a thread was refused for another reason");
        sum += got[i];
    }
    if (sum != there) wrong("the threads did not get all that there was");
    SAY(cudaDeviceReset());
}

static char pattern[MIB], back[MIB];

static void copies(void) {
    void *a, *b, *stream, *from, *to;
    float ms = -1;
    for (size_t i = 0; i < MIB; i++) pattern[i] = (char)(i * 7);
    SAY(cudaMalloc(&a, MIB));
    SAY(cudaMalloc(&b, MIB));
    SAY(cudaStreamCreateWithFlags(&stream, 1));
    SAY(cudaEventCreate(&from));
    SAY(cudaEventCreate(&to));
    SAY(cudaEventRecord(from, stream));
    SAY(cudaMemcpyAsync(a, pattern, MIB, TO_DEVICE, stream));
    SAY(cudaMemcpyAsync(b, a, MIB, ON_DEVICE, stream));
    SAY(cudaEventRecord(to, stream));
    SAY(cudaStreamWaitEvent(NULL, to, 0));
    SAY(cudaEventSynchronize(to));
    SAY(cudaEventElapsedTime(&ms, from, to));
    SAY(cudaMemcpy(back, b, MIB, TO_HOST));
    if (memcmp(pattern, back, MIB) != 0 || ms <= 0) wrong("not copied, or in no time");
    SAY(cudaMemset(a, 1, MIB));
    SAY(cudaMemsetAsync(a, 2, MIB / 2, stream));
    SAY(cudaStreamSynchronize(stream));
    SAY(cudaMemcpy2D(back, 1024, a, 1024, 1024, 1024, TO_HOST));
    if (back[0] != 2 || back[MIB - 1] != 1) wrong("not filled");
    SAY(cudaEventDestroy(from));
    SAY(cudaEventDestroy(to));
    SAY(cudaStreamDestroy(stream));
    SAY(cudaFree(a));
    SAY(cudaFree(b));
}

// A fat binary as the compiler registers it; in it a module of the simulated driver's.
struct entry {
    uint16_t kind, version;
    uint32_t header;
    uint64_t size;
    uint32_t compressed, options;
    uint16_t minor, major;
    uint32_t processor, name, name_size;
    uint64_t flags, unused, uncompressed;
};
static struct {
    uint32_t magic;
    uint16_t version, header;
    uint64_t size;
    struct entry entry;
    char text[256];
} fat __attribute__((aligned(16))) = {
    0xba55ed50, 1, 16, sizeof(struct entry) + 256, {.kind = 2, .version = 0x101, .header = sizeof(struct entry), .size = 256, .processor = 80, .flags = 0x11},
    "simgpu-module 1\nkernel spin 1000000 argument\nglobal table 3145728\ncode spin 2097152\n"};
static struct {
    uint32_t magic, version;
    const void *entries;
    void *unused;
} wrapper = {0x466243b1, 1, &fat, NULL};

static void spin(void) {}    // stands for the kernel
static char table[3 * MIB];  // stands for the variable

static void kernels(void) {
    void *stream, *graph, *exec, *at;
    unsigned long long more = 0;
    void *args[] = {&more};
    size_t nodes = 0;
    int blocks = 0;
    SAY(cudaGetSymbolAddress(&at, table));
    SAY(cudaMemcpyToSymbol(table, pattern, MIB, 0, TO_DEVICE));
    SAY(cudaLaunchKernel((void *)spin, ONE, ONE, args, 0, NULL));
    SAY(cudaDeviceSynchronize());
    SAY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (void *)spin, 1024, 0));
    SAY(cudaStreamCreateWithFlags(&stream, 1));
    for (int i = 0; i < 100; i++)
        if (cudaLaunchKernel((void *)spin, ONE, ONE, args, 0, i % 2 ? NULL : stream)) wrong("not launched");
    SAY(cudaLaunchCooperativeKernel((void *)spin, ONE, ONE, args, 0, stream));
    struct launch config = {.grid = ONE, .block = ONE, .stream = stream};
    SAY(cudaLaunchKernelExC(&config, (void *)spin, args));
    SAY(cudaStreamBeginCapture(stream, 0));
    for (int i = 0; i < 10; i++)
        if (cudaLaunchKernel((void *)spin, ONE, ONE, args, 0, stream)) wrong("not captured");
    SAY(cudaStreamEndCapture(stream, &graph));
    SAY(cudaGraphGetNodes(graph, NULL, &nodes));
    SAY(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    SAY(cudaGraphDestroy(graph));
    for (int i = 0; i < 10; i++)
        if (cudaGraphLaunch(exec, stream)) wrong("no graph");
    SAY(cudaDeviceSynchronize());
    if (nodes != 10 || blocks < 1) wrong("not ten nodes, or no room for a block");
    SAY(cudaGraphExecDestroy(exec));
    SAY(cudaStreamDestroy(stream));
}

// Another process on the same device: it sees and gets what this one leaves.
static void processes(char **argv, int device) {
    void *p;
    struct ipc_handle handle;
    char name[16], hex[129];
    int status = -1;
    SAY(cudaMalloc(&p, left() - 100 * MIB));
    SAY(cudaIpcGetMemHandle(&handle, p));
    for (int i = 0; i < 64; i++) sprintf(hex + 2 * i, "%02x", (unsigned char)handle.bytes[i]);
    snprintf(name, sizeof name, "%d", device);
    fflush(stdout);
    pid_t child = vfork();
    if (!child) {
        execl("/proc/self/exe", argv[0], argv[1], argv[2], name, hex, (char *)NULL);
        _exit(127);
    }
    waitpid(child, &status, 0);
    if (status) wrong("the other process failed");
    SAY(cudaFree(p));
}

static void other(int device, const char *hex) {
    void *p, *q;
    struct ipc_handle handle;
    unsigned byte;
    for (int i = 0; i < 64 && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++) handle.bytes[i] = (char)byte;
    SAY(cudaSetDevice(device));
    SAY(cudaIpcOpenMemHandle(&p, handle, 1));
    SAY(cudaMalloc(&q, left() + 512));
    SAY(cudaMalloc(&q, left()));
    SAY(cudaIpcCloseMemHandle(p));
}

int main(int argc, char **argv) {
    static char props[8192];
    int version = 0, count = -1, device = -1;
    if (argc < 3) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    look_up(argv[1], strcmp(argv[2], "own") == 0);
    if (argc > 4) return other(atoi(argv[3]), argv[4]), failed;
    void **module = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(module, (void *)spin, "spin", "spin", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterVar(module, table, "table", "table", 0, sizeof table, 0, 0);
    __cudaRegisterFatBinaryEnd(module);
    printf("version %d", cudaRuntimeGetVersion(&version));
    printf(" %d\n", version);
    printf("devices %d", cudaGetDeviceCount(&count));
    printf(" %d\n", count);
    for (int i = count - 1; i >= 0; i--) {
        SAY(cudaSetDevice(i));
        SAY(cudaGetDevice(&device));
        SAY(cudaGetDeviceProperties(props, i));
        printf("%s, %d of %d, totalGlobalMem is the total: %d\n", props, device, i,
               *(size_t *)(props + 288) == (left(), whole));
        fprintf(stderr, "%zu\n", whole);
        memory();
        pools(i);
        threads(i);
        copies();
        kernels();
        processes(argv, i);
    }
    for (int i = 0; i < count; i++) {
        SAY(cudaSetDevice(i));
        managed();
    }
    __cudaUnregisterFatBinary(module);
    return failed;
}
