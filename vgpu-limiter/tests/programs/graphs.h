// SPDX-License-Identifier: Apache-2.0
//
// Part of calls: graphs that allocate memory.

#define FREES 1 // the graph frees what it allocates
#define UPLOADS 2
#define AUTO_FREES 4
#define BY_CAPTURE 8
#define BY_PARAMS 16

static CUgraphExec graph_exec[64];
static CUdeviceptr graph_ptr[64];

static int add_nodes(CUgraph graph, int place, size_t bytes, int device, int how) {
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    CUDA_MEM_ALLOC_NODE_PARAMS *alloc = &any.params.alloc;
    alloc->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    alloc->poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
    alloc->bytesize = bytes;
    CUgraphNode node, end;
    int result = how & BY_PARAMS ? (int)cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &any)
                                 : (int)cuGraphAddMemAllocNode(&node, graph, NULL, 0, alloc);
    if (result == 0 && how & FREES)
        result = cuGraphAddMemFreeNode(&end, graph, &node, 1, alloc->dptr);
    graph_ptr[place] = alloc->dptr;
    return result;
}

static int capture_nodes(CUgraph *graph, int place, size_t bytes, int how) {
    CUstream on;
    int result = cuStreamCreate(&on, CU_STREAM_NON_BLOCKING);
    if (result == 0)
        result = cuStreamBeginCapture_v2(on, CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (result == 0)
        result = cuMemAllocAsync(&graph_ptr[place], bytes, on);
    if (result == 0 && how & FREES)
        result = cuMemFreeAsync(graph_ptr[place], on);
    return result != 0 ? result : (int)cuStreamEndCapture(on, graph);
}

static int graph_alloc(int place, size_t bytes, int device, int how) {
    CUgraph graph;
    int result = how & BY_CAPTURE ? capture_nodes(&graph, place, bytes, how) : (int)cuGraphCreate(&graph, 0);
    if (result == 0 && !(how & BY_CAPTURE))
        result = add_nodes(graph, place, bytes, device, how);
    unsigned flags = (how & UPLOADS ? CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD : 0u) |
                     (how & AUTO_FREES ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0u);
    return result != 0 ? result : (int)cuGraphInstantiateWithFlags(&graph_exec[place], graph, flags);
}
