// SPDX-License-Identifier: Apache-2.0
//
// graph.h: what the graph files share.
#ifndef VERNIER_SIMGPU_CUDA_GRAPH_H
#define VERNIER_SIMGPU_CUDA_GRAPH_H

#include "internal.h"

struct CUgraphNode_st {
    CUgraphNodeType type;
    uint64_t duration_ns;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    struct graph_alloc *memory;  // of an allocation node
    CUdeviceptr freed;
    struct CUgraphNode_st *next;
};

struct CUgraph_st {
    CUgraphNode first, *last;
    size_t count;
};

// graph.c
CUresult graph_add(CUgraph g, CUgraphNodeType type, uint64_t duration, CUgraphNode *node);

// graph_memory.c
struct graph_step {
    struct graph_alloc *alloc;  // NULL: frees what lies at freed
    CUdeviceptr freed;
};
CUresult graph_alloc_new(struct graph_alloc **alloc, CUDA_MEM_ALLOC_NODE_PARAMS *p);
void graph_alloc_hold(struct graph_alloc *alloc);
void graph_alloc_drop(struct graph_alloc *alloc);
CUresult graph_memory_upload(const struct graph_step *steps, size_t n);
CUresult graph_memory_launch(const struct graph_step *steps, size_t n, bool auto_free);

#endif
