// SPDX-License-Identifier: Apache-2.0
//
// graph.c: graphs: nodes, instantiation, launch.
//
// Invariants:
// - A graph's launch takes the sum of its kernels' times: branches do not
//   overlap, as streams do not. Its copies, fills and host functions are
//   counted as nodes but do not happen.
// - An executable graph keeps what it needs: the graph may be destroyed first.
// - Memory of an allocation node is charged when the node is made and freed
//   with the graph, or when a free node of it is launched.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>

struct CUgraphNode_st {
    CUgraph graph;
    CUgraphNodeType type;
    uint64_t duration_ns;
    CUDA_KERNEL_NODE_PARAMS_v2 kernel;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    CUdeviceptr freed;
    bool depends;
    struct CUgraphNode_st *next;
};

struct CUgraph_st {
    CUgraphNode first, *last;
    size_t count;
};

struct CUgraphExec_st {
    uint64_t duration_ns;
    size_t count;
    cuuint64_t flags;
    CUdeviceptr *freed;
    size_t freed_count;
};

CUresult graph_new(CUgraph *graph) {
    CUgraph g = calloc(1, sizeof *g);
    if (!g) return CUDA_ERROR_OUT_OF_MEMORY;
    g->last = &g->first;
    *graph = g;
    return CUDA_SUCCESS;
}

static CUresult add(CUgraph g, CUgraphNodeType type, uint64_t duration, size_t depends,
                    CUgraphNode *node) {
    NEED(g);
    INITIALIZED;
    CUgraphNode n = calloc(1, sizeof *n);
    if (!n) return CUDA_ERROR_OUT_OF_MEMORY;
    n->graph = g;
    n->type = type;
    n->duration_ns = duration;
    n->depends = depends > 0;
    *g->last = n;
    g->last = &n->next;
    g->count++;
    if (node) *node = n;
    return CUDA_SUCCESS;
}

CUresult graph_capture(CUgraph g, CUgraphNodeType type, uint64_t duration) {
    return add(g, type, duration, g->count, NULL);
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    NEED(graph && !flags);
    INITIALIZED;
    return graph_new(graph);
}

static void drop(CUgraphNode n) {
    if (n->alloc.dptr) release(n->alloc.dptr);
    free(n);
}

CUresult cuGraphDestroy(CUgraph graph) {
    NEED(graph);
    INITIALIZED;
    for (CUgraphNode n = graph->first, next; n; n = next) {
        next = n->next;
        drop(n);
    }
    free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(CUgraphNode node) {
    NEED(node);
    INITIALIZED;
    CUgraphNode *p = &node->graph->first;
    while (*p && *p != node) p = &(*p)->next;
    NEED(*p);
    *p = node->next;
    if (node->graph->last == &node->next) node->graph->last = p;
    node->graph->count--;
    drop(node);
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *clone, CUgraph graph) {
    NEED(clone && graph);
    INITIALIZED;
    CHECK(graph_new(clone));
    for (CUgraphNode n = graph->first, made; n; n = n->next) {
        CHECK(add(*clone, n->type, n->duration_ns, n->depends, &made));
        made->kernel = n->kernel;
    }
    return CUDA_SUCCESS;
}

static CUresult list(CUgraph g, bool roots, CUgraphNode *nodes, size_t *count) {
    NEED(g && count);
    size_t n = 0, room = *count;
    for (CUgraphNode p = g->first; p; p = p->next) {
        if (roots && p->depends) continue;
        if (nodes && n < room) nodes[n] = p;
        n++;
    }
    if (nodes)
        for (size_t i = n; i < room; i++) nodes[i] = NULL;
    *count = nodes && n > room ? room : n;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    return list(graph, false, nodes, count);
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    return list(graph, true, nodes, count);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    NEED(node && type);
    *type = node->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                size_t count) {
    NEED(graph && (!count || (from && to)));
    for (size_t i = 0; i < count; i++) to[i]->depends = true;
    return CUDA_SUCCESS;
}

static uint64_t time_of(const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    return kernel_time(p->func ? p->func : (CUfunction)p->kern,
                       (uint64_t)p->gridDimX * p->gridDimY * p->gridDimZ, p->kernelParams,
                       p->extra);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                 size_t n, const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    (void)dependencies;
    NEED(node && p && (p->func || p->kern));
    CHECK(add(graph, CU_GRAPH_NODE_TYPE_KERNEL, time_of(p), n, node));
    (*node)->kernel = *p;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t n, const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    NEED(p);
    CUDA_KERNEL_NODE_PARAMS_v2 v2 = {
        p->func,      p->gridDimX,       p->gridDimY,     p->gridDimZ, p->blockDimX, p->blockDimY,
        p->blockDimZ, p->sharedMemBytes, p->kernelParams, p->extra,    NULL,         NULL};
    return cuGraphAddKernelNode_v2(node, graph, dependencies, n, &v2);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    NEED(node && p && node->type == CU_GRAPH_NODE_TYPE_KERNEL);
    *p = node->kernel;
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    NEED(node && p && node->type == CU_GRAPH_NODE_TYPE_KERNEL && (p->func || p->kern));
    node->kernel = *p;
    node->duration_ns = time_of(p);
    return CUDA_SUCCESS;
}

// PLAIN makes the nodes that only count.
#define PLAIN(name, type, param)                                                         \
    CUresult name(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,     \
                  size_t n, param) {                                                     \
        (void)dependencies, (void)p;                                                     \
        NEED(node);                                                                      \
        return add(graph, type, 0, n, node);                                             \
    }

PLAIN(cuGraphAddHostNode, CU_GRAPH_NODE_TYPE_HOST, const CUDA_HOST_NODE_PARAMS *p)
PLAIN(cuGraphAddEventRecordNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CUevent p)
PLAIN(cuGraphAddEventWaitNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, CUevent p)

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                             size_t n) {
    (void)dependencies;
    NEED(node);
    return add(graph, CU_GRAPH_NODE_TYPE_EMPTY, 0, n, node);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t n, const CUDA_MEMCPY3D *p, CUcontext ctx) {
    (void)dependencies, (void)ctx;
    NEED(node && p);
    return add(graph, CU_GRAPH_NODE_TYPE_MEMCPY, 0, n, node);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t n, const CUDA_MEMSET_NODE_PARAMS_v1 *p, CUcontext ctx) {
    (void)dependencies, (void)ctx;
    NEED(node && p);
    return add(graph, CU_GRAPH_NODE_TYPE_MEMSET, 0, n, node);
}

static uint64_t duration_of(CUgraph g) {
    uint64_t sum = 0;
    for (CUgraphNode n = g->first; n; n = n->next) sum += n->duration_ns;
    return sum;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph,
                                  const CUgraphNode *dependencies, size_t n, CUgraph child) {
    (void)dependencies;
    NEED(node && child);
    return add(graph, CU_GRAPH_NODE_TYPE_GRAPH, duration_of(child), n, node);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    CUcontext ctx;
    (void)dependencies;
    NEED(node && graph && p);
    CHECK(need_context(&ctx));
    CHECK(allocate(ctx, p->bytesize, BLOCK_PLAIN, NULL, &p->dptr));
    CUresult ret = add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, 0, n, node);
    if (ret == CUDA_SUCCESS)
        (*node)->alloc = *p;
    else
        release(p->dptr);
    return ret;
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
    CHECK(add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, 0, n, node));
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
            return add(graph, p->type, 0, n, node);
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                        size_t n, CUgraphNodeParams *p) {
    return cuGraphAddNode_v2(node, graph, dependencies, NULL, n, p);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    NEED(exec && graph);
    INITIALIZED;
    CUgraphExec e = calloc(1, sizeof *e);
    if (e) e->freed = calloc(graph->count + 1, sizeof *e->freed);
    if (!e || !e->freed) {
        free(e);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    e->flags = flags;
    e->duration_ns = duration_of(graph);
    e->count = graph->count;
    for (CUgraphNode n = graph->first; n; n = n->next)
        if (n->freed) e->freed[e->freed_count++] = n->freed;
    *exec = e;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
                               size_t size) {
    if (error) *error = NULL;
    if (log && size) *log = 0;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *p) {
    NEED(p);
    p->hErrNode_out = NULL;
    p->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    CHECK(cuGraphInstantiateWithFlags(exec, graph, p->flags));
    p->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags) {
    NEED(exec && flags);
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    NEED(exec);
    INITIALIZED;
    free(exec->freed);
    free(exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    NEED(exec && node && p && node->type == CU_GRAPH_NODE_TYPE_KERNEL && (p->func || p->kern));
    exec->duration_ns += time_of(p) - node->duration_ns;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    NEED(exec && graph && info);
    *info = (CUgraphExecUpdateResultInfo){CU_GRAPH_EXEC_UPDATE_SUCCESS, NULL, NULL};
    if (graph->count != exec->count) {
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    exec->duration_ns = duration_of(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error,
                           CUgraphExecUpdateResult *result) {
    CUgraphExecUpdateResultInfo info = {CU_GRAPH_EXEC_UPDATE_ERROR, NULL, NULL};
    CUresult ret = cuGraphExecUpdate_v2(exec, graph, &info);
    if (error) *error = NULL;
    if (result) *result = info.result;
    return ret;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    CUstream s;
    NEED(exec);
    return context_stream(stream, &s);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    CUstream s;
    NEED(exec);
    CHECK(context_stream(stream, &s));
    if (s->capture) return graph_capture(s->capture, CU_GRAPH_NODE_TYPE_GRAPH, exec->duration_ns);
    CHECK(stream_add(s, exec->duration_ns));
    for (size_t i = 0; i < exec->freed_count; i++) release(exec->freed[i]);
    return CUDA_SUCCESS;
}

PTSZ(cuGraphInstantiateWithParams);
PTSZ(cuGraphUpload);
PTSZ(cuGraphLaunch);
