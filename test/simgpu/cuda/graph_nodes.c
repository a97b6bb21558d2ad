// SPDX-License-Identifier: Apache-2.0
//
// graph_nodes.c: adding nodes of every kind.
//
// Invariants:
// - A kernel node's time is worked out from its parameters when they are set.
#define _GNU_SOURCE
#include "graph.h"

#include <string.h>

uint64_t graph_kernel_time(const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    return kernel_time(p->func ? p->func : (CUfunction)p->kern,
                       (uint64_t)p->gridDimX * p->gridDimY * p->gridDimZ,
                       (uint64_t)p->blockDimX * p->blockDimY * p->blockDimZ, p->kernelParams,
                       p->extra);
}

CUDA_KERNEL_NODE_PARAMS_v2 graph_kernel_params(const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    CUDA_KERNEL_NODE_PARAMS_v2 v2 = {0};
    memcpy(&v2, p, sizeof *p);  // the same members, two less
    return v2;
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                 size_t n, const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    (void)dependencies;
    NEED(node && p && (p->func || p->kern));
    CHECK(graph_add(graph, CU_GRAPH_NODE_TYPE_KERNEL, graph_kernel_time(p), n, node));
    (*node)->kernel = *p;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t n, const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    NEED(p);
    CUDA_KERNEL_NODE_PARAMS_v2 v2 = graph_kernel_params(p);
    return cuGraphAddKernelNode_v2(node, graph, dependencies, n, &v2);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    NEED(node && p && node->type == CU_GRAPH_NODE_TYPE_KERNEL);
    *p = node->kernel;
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    CUDA_KERNEL_NODE_PARAMS_v2 v2;
    NEED(p);
    CHECK(cuGraphKernelNodeGetParams_v2(node, &v2));
    memcpy(p, &v2, sizeof *p);
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    NEED(node && p && node->type == CU_GRAPH_NODE_TYPE_KERNEL && (p->func || p->kern));
    node->kernel = *p;
    node->duration_ns = graph_kernel_time(p);
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    NEED(p);
    CUDA_KERNEL_NODE_PARAMS_v2 v2 = graph_kernel_params(p);
    return cuGraphKernelNodeSetParams_v2(node, &v2);
}

// PLAIN makes the nodes that only count.
#define PLAIN(name, type, param)                                                         \
    CUresult name(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,     \
                  size_t n, param) {                                                     \
        (void)dependencies, (void)p;                                                     \
        NEED(node);                                                                      \
        return graph_add(graph, type, 0, n, node);                                             \
    }

PLAIN(cuGraphAddHostNode, CU_GRAPH_NODE_TYPE_HOST, const CUDA_HOST_NODE_PARAMS *p)
PLAIN(cuGraphAddEventRecordNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CUevent p)
PLAIN(cuGraphAddEventWaitNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, CUevent p)

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                             size_t n) {
    (void)dependencies;
    NEED(node);
    return graph_add(graph, CU_GRAPH_NODE_TYPE_EMPTY, 0, n, node);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t n, const CUDA_MEMCPY3D *p, CUcontext ctx) {
    (void)dependencies, (void)ctx;
    NEED(node && p);
    return graph_add(graph, CU_GRAPH_NODE_TYPE_MEMCPY, 0, n, node);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t n, const CUDA_MEMSET_NODE_PARAMS_v1 *p, CUcontext ctx) {
    (void)dependencies, (void)ctx;
    NEED(node && p);
    return graph_add(graph, CU_GRAPH_NODE_TYPE_MEMSET, 0, n, node);
}

uint64_t graph_duration(CUgraph g) {
    uint64_t sum = 0;
    for (CUgraphNode n = g->first; n; n = n->next) sum += n->duration_ns;
    return sum;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph,
                                  const CUgraphNode *dependencies, size_t n, CUgraph child) {
    (void)dependencies;
    NEED(node && child);
    return graph_add(graph, CU_GRAPH_NODE_TYPE_GRAPH, graph_duration(child), n, node);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    struct graph_alloc *memory;
    (void)dependencies;
    NEED(node && graph && p);
    CHECK(graph_alloc_new(&memory, p));
    CUresult ret = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, 0, n, node);
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
    (void)dependencies;
    NEED(node && at);
    CHECK(graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, 0, n, node));
    (*node)->freed = at;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *at) {
    NEED(node && at && node->type == CU_GRAPH_NODE_TYPE_MEM_FREE);
    *at = node->freed;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t n, CUgraphNodeParams *p) {
    (void)edges;
    NEED(p);
    switch (p->type) {
        case CU_GRAPH_NODE_TYPE_KERNEL:
            return cuGraphAddKernelNode_v2(node, graph, dependencies, n, &p->params.kernel);
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
            return cuGraphAddMemAllocNode(node, graph, dependencies, n, &p->params.alloc);
        case CU_GRAPH_NODE_TYPE_MEM_FREE:
            return cuGraphAddMemFreeNode(node, graph, dependencies, n, p->params.free.dptr);
        case CU_GRAPH_NODE_TYPE_GRAPH:
            return cuGraphAddChildGraphNode(node, graph, dependencies, n, p->params.graph.graph);
        case CU_GRAPH_NODE_TYPE_MEMCPY:
        case CU_GRAPH_NODE_TYPE_MEMSET:
        case CU_GRAPH_NODE_TYPE_HOST:
        case CU_GRAPH_NODE_TYPE_EMPTY:
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
            NEED(node);
            return graph_add(graph, p->type, 0, n, node);
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                        size_t n, CUgraphNodeParams *p) {
    return cuGraphAddNode_v2(node, graph, dependencies, NULL, n, p);
}
