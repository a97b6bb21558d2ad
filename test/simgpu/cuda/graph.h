// SPDX-License-Identifier: Apache-2.0
//
// graph.h: what the graph files share.
#ifndef VERNIER_SIMGPU_CUDA_GRAPH_H
#define VERNIER_SIMGPU_CUDA_GRAPH_H

#include "internal.h"

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

// graph.c: adds a node; depends counts what it waits for.
CUresult graph_add(CUgraph g, CUgraphNodeType type, uint64_t duration, size_t depends,
                   CUgraphNode *node);

// graph_nodes.c
uint64_t graph_kernel_time(const CUDA_KERNEL_NODE_PARAMS_v2 *p);
uint64_t graph_duration(CUgraph g);

#endif
