// SPDX-License-Identifier: Apache-2.0
//
// Part of calls: copies and fills.

#define COPIED MIB

// Makes every call of its kind once, with one MiB, on stream 1 or a default stream.
// Answers how many there were, or minus the error.
static int copy_all(void) {
    static char host[COPIED];
    CUdeviceptr a, b;
    CUarray one, two;
    CUcontext own;
    CUstream on = stream[1];
    CUDA_ARRAY_DESCRIPTOR flat = {COPIED, 1, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    int result = cuMemAlloc_v2(&a, COPIED) | cuMemAlloc_v2(&b, COPIED) | cuArrayCreate_v2(&one, &flat) |
                 cuArrayCreate_v2(&two, &flat) | cuCtxGetCurrent(&own), count = 0;
    CUDA_MEMCPY2D area = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = a, .srcPitch = 1024, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = b, .dstPitch = 1024, .WidthInBytes = 1024, .Height = 1024};
    CUDA_MEMCPY3D body = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = a, .srcPitch = 1024, .srcHeight = 32,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = b, .dstPitch = 1024, .dstHeight = 32,
                          .WidthInBytes = 1024, .Height = 32, .Depth = 32};
    CUDA_MEMCPY3D_PEER peers = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = a, .srcContext = own, .srcPitch = 1024,
                                .srcHeight = 32, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = b, .dstContext = own,
                                .dstPitch = 1024, .dstHeight = 32, .WidthInBytes = 1024, .Height = 32, .Depth = 32};
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    CUdeviceptr to[2] = {a, a + COPIED / 2}, from[2] = {b, b + COPIED / 2};
    size_t halves[2] = {COPIED / 2, COPIED / 2}, first = 0;
    CUmemcpy3DOperand ends[2] = {{.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = a}, {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = b}};
    CUDA_MEMCPY3D_BATCH_OP op = {ends[0], ends[1], {1024, 32, 32}, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 0};
#define ONE(call)                            \
    do {                                     \
        if (result == 0 && (result = (call)) == 0) \
            count++;                         \
    } while (0)
#define NOW(name, ...) ONE(name(__VA_ARGS__)); ONE(name##_ptds(__VA_ARGS__))
#define LATER(name, ...) ONE(name(__VA_ARGS__, on)); ONE(name##_ptsz(__VA_ARGS__, on))
    NOW(cuMemcpy, a, b, COPIED);
    NOW(cuMemcpyPeer, a, own, b, own, COPIED);
    NOW(cuMemcpyHtoD_v2, a, host, COPIED);
    NOW(cuMemcpyDtoH_v2, host, a, COPIED);
    NOW(cuMemcpyDtoD_v2, a, b, COPIED);
    NOW(cuMemcpyDtoA_v2, one, 0, a, COPIED);
    NOW(cuMemcpyAtoD_v2, a, one, 0, COPIED);
    NOW(cuMemcpyHtoA_v2, one, 0, host, COPIED);
    NOW(cuMemcpyAtoH_v2, host, one, 0, COPIED);
    NOW(cuMemcpyAtoA_v2, one, 0, two, 0, COPIED);
    NOW(cuMemcpy2D_v2, &area);
    NOW(cuMemcpy2DUnaligned_v2, &area);
    NOW(cuMemcpy3D_v2, &body);
    NOW(cuMemcpy3DPeer, &peers);
    LATER(cuMemcpyAsync, a, b, COPIED);
    LATER(cuMemcpyPeerAsync, a, own, b, own, COPIED);
    LATER(cuMemcpyHtoDAsync_v2, a, host, COPIED);
    LATER(cuMemcpyDtoHAsync_v2, host, a, COPIED);
    LATER(cuMemcpyDtoDAsync_v2, a, b, COPIED);
    LATER(cuMemcpyHtoAAsync_v2, one, 0, host, COPIED);
    LATER(cuMemcpyAtoHAsync_v2, host, one, 0, COPIED);
    LATER(cuMemcpy2DAsync_v2, &area);
    LATER(cuMemcpy3DAsync_v2, &body);
    LATER(cuMemcpy3DPeerAsync, &peers);
    LATER(cuMemcpyBatchAsync, to, from, halves, 2, &attributes, &first, 1, NULL);
    LATER(cuMemcpyBatchAsync_v2, to, from, halves, 2, &attributes, &first, 1);
    LATER(cuMemcpyWithAttributesAsync, a, b, COPIED, &attributes);
    LATER(cuMemcpy3DBatchAsync, 1, &op, NULL, 0);
    LATER(cuMemcpy3DBatchAsync_v2, 1, &op, 0);
    LATER(cuMemcpy3DWithAttributesAsync, &op, 0);
#define FILL(bits)                                                        \
    NOW(cuMemsetD##bits##_v2, a, 1, COPIED / (bits / 8));                 \
    NOW(cuMemsetD2D##bits##_v2, a, 1024, 1, 1024 / (bits / 8), 1024);     \
    LATER(cuMemsetD##bits##Async, a, 1, COPIED / (bits / 8));             \
    LATER(cuMemsetD2D##bits##Async, a, 1024, 1, 1024 / (bits / 8), 1024)
    FILL(8);
    FILL(16);
    FILL(32);
    return result != 0 ? -result : count;
}

// Keeps the device as busy as it may for so long. How: 0 fills on stream 1, 1 copies
// on stream 1, 2 copies that are waited for, 3 cooperative launches that name their
// devices. Answers the milliseconds it really took.
static int burn_otherwise(int how, long milliseconds) {
    const size_t size = (size_t)256 << 20;
    double began = now();
    CUdeviceptr p;
    unsigned long long ns = 1000000;
    void *params[] = {&ns};
    int result = cuMemAlloc_v2(&p, 3 * size);
    if (result == 0)
        result = load_kernel();
    CUDA_LAUNCH_PARAMS launch = {.function = kernel, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
                                 .blockDimY = 1, .blockDimZ = 1, .hStream = stream[1], .kernelParams = params};
    while (result == 0 && now() < began + (double)milliseconds)
        result = how == 0   ? cuMemsetD8Async(p + size, 1, size, stream[1])
                 : how == 1 ? cuMemcpyDtoDAsync_v2(p + size, p + 2 * size, size, stream[1])
                 : how == 2 ? cuMemcpyDtoD_v2(p + size, p + 2 * size, size)
                            : cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0);
    cuCtxSynchronize();
    return result != 0 ? -result : (int)(now() - began);
}

// A graph of a fill and a copy by stream capture; answers how many nodes it has.
static int capture_copies(void) {
    CUgraph graph;
    CUdeviceptr p;
    size_t nodes = 0;
    int result = cuMemAlloc_v2(&p, 2 * COPIED);
    if (result == 0)
        result = cuStreamBeginCapture_v2(stream[1], CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (result == 0)
        result = cuMemsetD8Async(p, 1, COPIED, stream[1]);
    if (result == 0)
        result = cuMemcpyDtoDAsync_v2(p + COPIED, p, COPIED, stream[1]);
    if (result == 0)
        result = cuStreamEndCapture(stream[1], &graph);
    if (result == 0)
        result = cuGraphGetNodes(graph, NULL, &nodes);
    return result != 0 ? -result : (int)nodes;
}
