// SPDX-License-Identifier: Apache-2.0
//
// graph_nodes.c: adding nodes that allocate and free. The others come by captures alone.
#define _GNU_SOURCE
#include "graph.h"

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    struct graph_alloc *memory;
    (void)dependencies, (void)n;
    NEED(node && graph && p);
    CHECK(graph_alloc_new(&memory, p));
    CUresult ret = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, 0, node);
    if (ret != CUDA_SUCCESS) {
        graph_alloc_drop(memory);
        return ret;
    }
    (*node)->alloc = *p;
    (*node)->memory = memory;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    NEED(node && p && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    *p = node->alloc;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                               size_t n, CUdeviceptr at) {
    (void)dependencies, (void)n;
    NEED(node && at);
    CHECK(graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, 0, node));
    (*node)->freed = at;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t n, CUgraphNodeParams *p) {
    (void)edges;
    NEED(p);
    switch (p->type) {
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
            return cuGraphAddMemAllocNode(node, graph, dependencies, n, &p->params.alloc);
        case CU_GRAPH_NODE_TYPE_MEM_FREE:
            return cuGraphAddMemFreeNode(node, graph, dependencies, n, p->params.free.dptr);
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                        size_t n, CUgraphNodeParams *p) {
    return cuGraphAddNode_v2(node, graph, dependencies, NULL, n, p);
}
