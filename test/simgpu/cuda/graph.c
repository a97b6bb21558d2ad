// SPDX-License-Identifier: Apache-2.0
//
// graph.c: graphs: nodes, instantiation, launch.
//
// Invariants:
// - A graph's launch takes the sum of its kernels' times: branches do not
//   overlap, as streams do not. Its copies, fills and host functions are
//   counted as nodes but do not happen.
// - An executable graph keeps what it needs: the graph may be destroyed first.
// - An executable graph runs its allocation and free nodes in the order in which
//   they were added (graph_memory.c).
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>

struct CUgraphExec_st {
    uint64_t duration_ns;
    size_t count;
    cuuint64_t flags;
    struct graph_step *steps;
    size_t step_count;
};

CUresult graph_new(CUgraph *graph) {
    CUgraph g = calloc(1, sizeof *g);
    if (!g) return CUDA_ERROR_OUT_OF_MEMORY;
    g->last = &g->first;
    *graph = g;
    return CUDA_SUCCESS;
}

CUresult graph_add(CUgraph g, CUgraphNodeType type, uint64_t duration, size_t depends,
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
    return graph_add(g, type, duration, g->count, NULL);
}

CUresult graph_capture_alloc(CUgraph g, int ordinal, size_t size, CUdeviceptr *at) {
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS p = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}},
        .bytesize = size,
    };
    CHECK(cuGraphAddMemAllocNode(&node, g, NULL, 0, &p));
    node->depends = g->count > 1;
    *at = p.dptr;
    return CUDA_SUCCESS;
}

CUresult graph_capture_free(CUgraph g, CUdeviceptr at) {
    CUgraphNode node;
    CHECK(cuGraphAddMemFreeNode(&node, g, NULL, 0, at));
    node->depends = g->count > 1;
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    NEED(graph && !flags);
    INITIALIZED;
    return graph_new(graph);
}

static void drop(CUgraphNode n) {
    if (n->memory) graph_alloc_drop(n->memory);
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
        CHECK(graph_add(*clone, n->type, n->duration_ns, n->depends, &made));
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

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    NEED(exec && graph);
    INITIALIZED;
    CUgraphExec e = calloc(1, sizeof *e);
    if (e) e->steps = calloc(graph->count + 1, sizeof *e->steps);
    if (!e || !e->steps) {
        free(e);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    e->flags = flags;
    e->duration_ns = graph_duration(graph);
    e->count = graph->count;
    for (CUgraphNode n = graph->first; n; n = n->next) {
        if (!n->memory && !n->freed) continue;
        e->steps[e->step_count++] = (struct graph_step){n->memory, n->freed};
        if (n->memory) graph_alloc_hold(n->memory);
    }
    *exec = e;
    CUresult ret = CUDA_SUCCESS;
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) ret = graph_memory_upload(e->steps, e->step_count);
    if (ret != CUDA_SUCCESS) cuGraphExecDestroy(e);
    return ret;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
                               size_t size) {
    if (error) *error = NULL;
    if (log && size) *log = 0;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                            size_t n) {
    return cuGraphInstantiate_v2(exec, graph, error_node, log, n);
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
    for (size_t i = 0; i < exec->step_count; i++)
        if (exec->steps[i].alloc) graph_alloc_drop(exec->steps[i].alloc);
    free(exec->steps);
    free(exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    NEED(exec && node && p && node->type == CU_GRAPH_NODE_TYPE_KERNEL && (p->func || p->kern));
    exec->duration_ns += graph_kernel_time(p) - node->duration_ns;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    NEED(p);
    CUDA_KERNEL_NODE_PARAMS_v2 v2 = graph_kernel_params(p);
    return cuGraphExecKernelNodeSetParams_v2(exec, node, &v2);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    NEED(exec && graph && info);
    *info = (CUgraphExecUpdateResultInfo){CU_GRAPH_EXEC_UPDATE_SUCCESS, NULL, NULL};
    if (graph->count != exec->count) {
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    exec->duration_ns = graph_duration(graph);
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
    CHECK(context_stream(stream, &s));
    return graph_memory_upload(exec->steps, exec->step_count);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    CUstream s;
    NEED(exec);
    CHECK(context_stream(stream, &s));
    if (s->capture) return graph_capture(s->capture, CU_GRAPH_NODE_TYPE_GRAPH, exec->duration_ns);
    CHECK(graph_memory_launch(exec->steps, exec->step_count,
                              exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    return stream_add(s, exec->duration_ns);
}

PTSZ(cuGraphInstantiateWithParams);
PTSZ(cuGraphUpload);
PTSZ(cuGraphLaunch);
