// SPDX-License-Identifier: Apache-2.0
//
// Finds the states of streams and contexts in the process's table.

#include "compute/stream_state.h"

#include "memory/memory.h"

#include <stdlib.h>

#define STREAMS 64 // of so many
#define MEASURED_STREAMS 16

uint64_t vgpu_stream_key(cu_stream stream, cu_ctx ctx) {
    static _Thread_local char own __attribute__((tls_model("initial-exec")));
    uint64_t id = (uintptr_t)stream;
    if (stream == VGPU_PER_THREAD) // a default stream belongs to context and thread
        id = (uintptr_t)ctx ^ (uintptr_t)&own << 4;
    else if (stream == VGPU_LEGACY)
        id = (uintptr_t)ctx;
    return vgpu_key(VGPU_STREAM, id);
}

// The context's context state, made on first use; the table keeps it under the
// context's key with one bit changed, which no handle has.
static struct vgpu_ctx_state *ctx_state_of(struct vgpu_process *process, cu_ctx ctx) {
    uint64_t key = vgpu_key(VGPU_STREAM, (uintptr_t)ctx) ^ 2;
    struct vgpu_ctx_state *ctx_state = vgpu_table_find(&process->table, key);
    if (ctx_state != NULL)
        return ctx_state;
    ctx_state = calloc(1, sizeof *ctx_state);
    struct vgpu_entry old, entry = {key, (uintptr_t)ctx_state, ctx};
    return ctx_state != NULL && vgpu_table_put(&process->table, &entry, &old) ? ctx_state : NULL;
}

// How many of a new stream's launches are to be measured by themselves. Of streams that are
// waited for and end after a few launches none would be otherwise: what the first few of a
// class have taken, with the time for which the process was stopped, would be charged for
// ever. Of several streams' at the same time all are measured, or what they have under way
// would be in each other's.
static unsigned first_probes(struct vgpu_ctx_state *ctx_state) {
    unsigned n = ctx_state->streams++ % STREAMS;
    if (n == 0)
        atomic_store(&ctx_state->measures, atomic_exchange(&ctx_state->unmeasured, false));
    return atomic_load(&ctx_state->measures) && n < MEASURED_STREAMS ? VGPU_BATCHES - 1 : 0;
}

struct vgpu_stream_state *vgpu_stream_find(struct vgpu_process *process, cu_stream stream,
                                     const struct vgpu_here *here) {
    uint64_t key = vgpu_stream_key(stream, here->ctx);
    struct vgpu_stream_state *state = vgpu_table_find(&process->table, key);
    if (state != NULL)
        return state;
    vgpu_lock(&process->launches.stream_lock);
    struct vgpu_ctx_state *ctx_state = ctx_state_of(process, here->ctx);
    state = vgpu_table_find(&process->table, key);
    if (state == NULL && ctx_state != NULL && (state = calloc(1, sizeof *state)) != NULL) {
        state->process = process;
        state->ctx_state = ctx_state;
        state->device = here->device;
        state->probes = first_probes(ctx_state);
        struct vgpu_entry old, entry = {key, (uintptr_t)state, here->ctx};
        if (!vgpu_table_put(&process->table, &entry, &old)) {
            free(state);
            state = NULL;
        }
    }
    vgpu_unlock(&process->launches.stream_lock);
    return state;
}
