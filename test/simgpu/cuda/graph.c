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

CUresult graph_add(CUgraph g, CUgraphNodeType type, uint64_t duration, CUgraphNode *node) {
    NEED(g);
    INITIALIZED;
    CUgraphNode n = calloc(1, sizeof *n);
    if (!n) return CUDA_ERROR_OUT_OF_MEMORY;
    n->type = type;
    n->duration_ns = duration;
    *g->last = n;
    g->last = &n->next;
    g->count++;
    if (node) *node = n;
    return CUDA_SUCCESS;
}

CUresult graph_capture(CUgraph g, CUgraphNodeType type, uint64_t duration) {
    return graph_add(g, type, duration, NULL);
}

CUresult graph_capture_alloc(CUgraph g, int ordinal, size_t size, CUdeviceptr *at) {
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS p = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}},
        .bytesize = size,
    };
    CHECK(cuGraphAddMemAllocNode(&node, g, NULL, 0, &p));
    *at = p.dptr;
    return CUDA_SUCCESS;
}

CUresult graph_capture_free(CUgraph g, CUdeviceptr at) {
    CUgraphNode node;
    return cuGraphAddMemFreeNode(&node, g, NULL, 0, at);
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    NEED(graph && !flags);
    INITIALIZED;
    return graph_new(graph);
}

CUresult cuGraphDestroy(CUgraph graph) {
    NEED(graph);
    INITIALIZED;
    for (CUgraphNode n = graph->first, next; n; n = next) {
        next = n->next;
        if (n->memory) graph_alloc_drop(n->memory);
        free(n);
    }
    free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *count) {
    NEED(g && count);
    size_t n = 0, room = *count;
    for (CUgraphNode p = g->first; p; p = p->next) {
        if (nodes && n < room) nodes[n] = p;
        n++;
    }
    if (nodes)
        for (size_t i = n; i < room; i++) nodes[i] = NULL;
    *count = nodes && n > room ? room : n;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    NEED(node && type);
    *type = node->type;
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
    for (CUgraphNode n = graph->first; n; n = n->next) {
        e->duration_ns += n->duration_ns;
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

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    NEED(exec);
    INITIALIZED;
    for (size_t i = 0; i < exec->step_count; i++)
        if (exec->steps[i].alloc) graph_alloc_drop(exec->steps[i].alloc);
    free(exec->steps);
    free(exec);
    return CUDA_SUCCESS;
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
