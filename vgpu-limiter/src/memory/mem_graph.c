// SPDX-License-Identifier: Apache-2.0
//
// Memory that graphs allocate while they run.
//
// An allocation node has an address from the beginning and device memory from the
// first upload or launch of its graph; the driver keeps that for later launches.
// So each device has one pool for all graphs (pool.c), and what can make it grow
// is charged for before.
//
// Invariants:
//   1. A launch or upload is charged what its nodes allocate, less what the pool
//      has reserved and nobody uses.
//   2. graphs.lock is held from that comparison until the driver has answered, and
//      while the pool is trimmed, so that nobody else takes what is counted on. The
//      driver never calls back.
//   3. A process none of whose graphs allocates pays for one test per launch.

#include "memory/mem_graph.h"

#include "memory/memory.h"
#include "memory/pool.h"

#include <stdlib.h>

struct graph_exec {
    uint64_t bytes[VGPU_MAX_DEVICES]; // what its nodes allocate together
    bool frees_first; // a launch ends what an earlier one has left allocated
    bool launched;
};

// Under graphs.lock. The pool of a device's graphs; NULL if there are too many.
static struct vgpu_pool *pool_of(struct vgpu_process *process, int device) {
    cu_pool handle = (cu_pool)&process->ordinal[device]; // an address that no pool has
    vgpu_lock_hot(&process->pools.lock);
    struct vgpu_pool *pool = vgpu_pool_find(process, handle, device);
    if (pool != NULL)
        pool->of_graphs = true;
    vgpu_unlock_hot(&process->pools.lock);
    return pool;
}

// What of the pool is free for a launch, as the driver says.
static uint64_t unused(struct vgpu_process *process, struct vgpu_pool *pool) {
    uint64_t used = 0;
    vgpu_lock_hot(&process->pools.lock);
    vgpu_pool_settle(process, pool, 0);
    uint64_t reserved = pool->reserved;
    vgpu_unlock_hot(&process->pools.lock);
    if (VGPU_REAL(cuDeviceGetGraphMemAttribute)(process->ordinal[pool->device], CU_GRAPH_USED,
                                                &used) != CU_OK)
        return 0;
    return used < reserved ? reserved - used : 0;
}

// Charges what the pool may grow by, which goes to *charged.
static bool charge(struct vgpu_process *process, struct vgpu_pool *pool,
                   const struct graph_exec *exec, uint64_t *charged, bool last) {
    uint64_t wanted = exec->bytes[pool->device], have = unused(process, pool);
    if (exec->frees_first && exec->launched)
        have += wanted;
    *charged = wanted > have ? wanted - have : 0;
    return last ? vgpu_charge(process, pool->device, *charged)
                : vgpu_try_charge(process, pool->device, *charged);
}

// The charges of one call.
struct growth {
    struct vgpu_pool *pool[VGPU_MAX_DEVICES];
    uint64_t charged[VGPU_MAX_DEVICES];
};

static void settle(struct vgpu_process *process, struct growth *growth) {
    vgpu_lock_hot(&process->pools.lock);
    for (int i = 0; i < VGPU_MAX_DEVICES; i++)
        if (growth->pool[i] != NULL)
            vgpu_pool_settle(process, growth->pool[i], growth->charged[i]);
    vgpu_unlock_hot(&process->pools.lock);
}

static bool begin(struct vgpu_process *process, const struct graph_exec *exec, bool waits, bool per_thread,
                  cu_stream stream, struct growth *growth) {
    *growth = (struct growth){0};
    for (uint32_t i = 0; i < process->limits.device_count; i++) {
        if (exec->bytes[i] == 0)
            continue;
        struct vgpu_pool *pool = pool_of(process, (int)i);
        bool fits = pool != NULL && charge(process, pool, exec, &growth->charged[i], false);
        if (pool != NULL && !fits) { // what runs on the stream frees what it uses
            if (waits)
                vgpu_stream_wait(process, per_thread, stream);
            vgpu_pools_trim_for_graph(process, (int)i);
            fits = charge(process, pool, exec, &growth->charged[i], true);
        }
        if (!fits) {
            settle(process, growth);
            return false;
        }
        vgpu_lock_hot(&process->pools.lock);
        pool->pending += growth->charged[i];
        vgpu_unlock_hot(&process->pools.lock);
        growth->pool[i] = pool;
    }
    return true;
}

// Adds up what a graph's nodes allocate. False if there is no memory to ask for
// them, or a device without a share among them.
static bool add_nodes(struct vgpu_process *process, cu_graph graph, struct graph_exec *exec) {
    size_t count = 0;
    if (VGPU_REAL(cuGraphGetNodes)(graph, NULL, &count) != CU_OK || count == 0)
        return true; // the driver says what is wrong
    cu_node *nodes = calloc(count, sizeof *nodes);
    bool good = nodes != NULL && VGPU_REAL(cuGraphGetNodes)(graph, nodes, &count) == CU_OK;
    for (size_t i = 0; good && i < count; i++) {
        struct cu_alloc_node alloc;
        cu_graph child;
        int type = -1;
        VGPU_REAL(cuGraphNodeGetType)(nodes[i], &type);
        if (type == CU_NODE_GRAPH && VGPU_REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CU_OK)
            good = add_nodes(process, child, exec);
        if (type != CU_NODE_ALLOC ||
            VGPU_REAL(cuGraphMemAllocNodeGetParams)(nodes[i], &alloc) != CU_OK ||
            alloc.pool.location.type != CU_LOCATION_DEVICE)
            continue;
        int device = vgpu_device_index(process, alloc.pool.location.id);
        good = device >= 0 && !__builtin_add_overflow(exec->bytes[device], vgpu_round(alloc.bytes),
                                                      &exec->bytes[device]);
    }
    free(nodes);
    return good;
}

static bool allocates(const struct graph_exec *exec) {
    uint64_t any = 0;
    for (int i = 0; i < VGPU_MAX_DEVICES; i++)
        any |= exec->bytes[i];
    return any != 0;
}

// Remembers what an executable graph will allocate. On failure it is destroyed.
static cu_result remember(struct vgpu_process *process, cu_exec handle, const struct graph_exec *exec) {
    struct graph_exec *kept = allocates(exec) ? malloc(sizeof *kept) : NULL;
    struct vgpu_entry old, entry = {vgpu_key(VGPU_EXEC, (uintptr_t)handle), (uintptr_t)kept, NULL};
    if (!allocates(exec))
        return CU_OK;
    if (kept != NULL) {
        *kept = *exec;
        if (vgpu_table_put(&process->table, &entry, &old))
            return CU_OK;
        free(kept);
    }
    VGPU_REAL(cuGraphExecDestroy)(handle);
    return CU_OUT_OF_MEMORY;
}

// The forms of instantiation differ in their arguments only.
#define INSTANTIATE(symbol, flags, parameters, arguments)                                          \
    cu_result symbol parameters {                                                                  \
        struct vgpu_process *process = atomic_load(&vgpu_process_page);                            \
        if (process == NULL || !atomic_load(&process->graphs.allocate))                            \
            return VGPU_REAL(symbol) arguments;                                                    \
        struct graph_exec wanted = {.frees_first = ((flags) & CU_INSTANTIATE_AUTO_FREE) != 0};     \
        struct growth growth = {0};                                                                \
        if (!add_nodes(process, graph, &wanted))                                                   \
            return CU_OUT_OF_MEMORY;                                                               \
        bool uploads = ((flags) & CU_INSTANTIATE_UPLOAD) != 0;                                     \
        vgpu_lock(&process->graphs.lock);                                                          \
        bool fits = !uploads || begin(process, &wanted, false, false, NULL, &growth);              \
        cu_result result = fits ? VGPU_REAL(symbol) arguments : CU_OUT_OF_MEMORY;                  \
        settle(process, &growth);                                                                  \
        vgpu_unlock(&process->graphs.lock);                                                        \
        return result == CU_OK ? remember(process, *exec, &wanted) : result;                       \
    }
INSTANTIATE(cuGraphInstantiate, 0, (cu_exec *exec, cu_graph graph, cu_node *node, char *log, size_t size),
            (exec, graph, node, log, size))
INSTANTIATE(cuGraphInstantiate_v2, 0, (cu_exec *exec, cu_graph graph, cu_node *node, char *log, size_t size),
            (exec, graph, node, log, size))
INSTANTIATE(cuGraphInstantiateWithFlags, flags, (cu_exec *exec, cu_graph graph, unsigned long long flags),
            (exec, graph, flags))
#define FLAGS_OF(params) (params != NULL ? *params : 0)
INSTANTIATE(cuGraphInstantiateWithParams, FLAGS_OF(params), (cu_exec *exec, cu_graph graph, uint64_t *params),
            (exec, graph, params))
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, FLAGS_OF(params), (cu_exec *exec, cu_graph graph, uint64_t *params),
            (exec, graph, params))

cu_result vgpu_graph_run_charged(struct vgpu_process *process, enum vgpu_hook hook, cu_exec handle,
                                 cu_stream stream) {
    cu_result (*real)(cu_exec, cu_stream) = vgpu_real(hook);
    bool launches = hook == VGPU_cuGraphLaunch || hook == VGPU_cuGraphLaunch_ptsz;
    bool per_thread = hook == VGPU_cuGraphLaunch_ptsz || hook == VGPU_cuGraphUpload_ptsz;
    struct graph_exec *exec = vgpu_table_find(&process->table, vgpu_key(VGPU_EXEC, (uintptr_t)handle));
    if (exec == NULL || vgpu_is_capturing(process, per_thread, stream))
        return real(handle, stream);
    struct growth growth;
    vgpu_lock(&process->graphs.lock);
    cu_result result = CU_OUT_OF_MEMORY;
    if (begin(process, exec, true, per_thread, stream, &growth)) {
        result = real(handle, stream);
        exec->launched |= launches && result == CU_OK;
        settle(process, &growth);
    }
    vgpu_unlock(&process->graphs.lock);
    return result;
}

cu_result cuGraphUpload(cu_exec exec, cu_stream stream) {
    return vgpu_graph_run(VGPU_cuGraphUpload, exec, stream);
}
cu_result cuGraphUpload_ptsz(cu_exec exec, cu_stream stream) {
    return vgpu_graph_run(VGPU_cuGraphUpload_ptsz, exec, stream);
}

cu_result cuGraphExecDestroy(cu_exec exec) {
    struct vgpu_process *process = atomic_load(&vgpu_process_page);
    struct vgpu_entry entry;
    bool known = process != NULL && atomic_load(&process->graphs.allocate) &&
                 vgpu_table_take(&process->table, vgpu_key(VGPU_EXEC, (uintptr_t)exec), &entry);
    cu_result result = VGPU_REAL(cuGraphExecDestroy)(exec);
    if (known) {
        free((void *)(uintptr_t)entry.value);
        vgpu_refresh_pools(process);
    }
    return result;
}

cu_result cuDeviceGraphMemTrim(cu_device device) {
    struct vgpu_process *process = atomic_load(&vgpu_process_page);
    if (process == NULL || !atomic_load(&process->graphs.allocate))
        return VGPU_REAL(cuDeviceGraphMemTrim)(device);
    vgpu_lock(&process->graphs.lock);
    cu_result result = VGPU_REAL(cuDeviceGraphMemTrim)(device);
    vgpu_unlock(&process->graphs.lock);
    vgpu_refresh_pools(process);
    return result;
}

// From here on instantiations look for allocation nodes. False if the node would
// allocate on a device of which the container has no share.
static bool note_node(const struct cu_alloc_node *node) {
    cu_result why;
    struct vgpu_process *process = vgpu_process(&why);
    if (process == NULL)
        return false;
    atomic_store(&process->graphs.allocate, true);
    return node == NULL || node->pool.location.type != CU_LOCATION_DEVICE ||
           node->pool.location.id < 0 || node->pool.location.id >= process->device_count ||
           vgpu_device_index(process, node->pool.location.id) >= 0;
}

cu_result cuGraphAddMemAllocNode(cu_node *node, cu_graph graph, const cu_node *after, size_t count,
                                 struct cu_alloc_node *params) {
    if (!note_node(params))
        return CU_NOT_PERMITTED;
    return VGPU_REAL(cuGraphAddMemAllocNode)(node, graph, after, count, params);
}

static bool note_any(const struct cu_node_params *params) {
    return params == NULL || params->type != CU_NODE_ALLOC || note_node(&params->alloc);
}

cu_result cuGraphAddNode(cu_node *node, cu_graph graph, const cu_node *after, size_t count,
                         struct cu_node_params *params) {
    if (!note_any(params))
        return CU_NOT_PERMITTED;
    return VGPU_REAL(cuGraphAddNode)(node, graph, after, count, params);
}
cu_result cuGraphAddNode_v2(cu_node *node, cu_graph graph, const cu_node *after, const void *edges,
                            size_t count, struct cu_node_params *params) {
    if (!note_any(params))
        return CU_NOT_PERMITTED;
    return VGPU_REAL(cuGraphAddNode_v2)(node, graph, after, edges, count, params);
}
