// SPDX-License-Identifier: Apache-2.0
//
// A stream may be destroyed while it has work: events outlive it, so its batches, the last
// of which ends with it, are measured when they are through. Launches on streams that end at
// once would otherwise cost nothing for good, as nobody would learn what they take; or what
// the short ones among them take, since only these are through by then.
//
// Invariant: a stream state is in its context state's ring as long as it is in the table by its own key,
// and has batches that aren't measured; what frees it is that they are, or its context's end.

#include "compute/destroyed_streams.h"

#include "compute/thread_stream.h"
#include "compute/timing.h"
#include "compute/token_bucket.h"
#include "memory/memory.h"

#include <stdlib.h>

#define MOST 256 // for whatever keeps the device from them
#define LOOKS 4

// One bit changed, as for context states: no handle is like that.
static uint64_t key_of(const struct vgpu_stream_state *state) { return vgpu_key(VGPU_STREAM, (uintptr_t)state) ^ 2; }

// Keeps the stream state of a stream that ends and is in the table no more, until its batches are
// measured. False: there are none, or too many such streams, or there is no memory.
static bool keep(struct vgpu_process *process, struct vgpu_stream_state *state, cu_ctx ctx) {
    struct vgpu_ctx_state *ctx_state = state->ctx_state;
    struct vgpu_entry old, entry = {key_of(state), (uintptr_t)state, ctx};
    if (state->pending == 0 || ctx_state->ends == MOST || !vgpu_table_put(&process->table, &entry, &old))
        return false;
    vgpu_timing_drop_open(state);
    state->next = ctx_state->destroyed != NULL ? ctx_state->destroyed->next : state;
    if (ctx_state->destroyed != NULL)
        ctx_state->destroyed->next = state;
    ctx_state->destroyed = state;
    ctx_state->ends++;
    return true;
}

static void free_state(struct vgpu_stream_state *state) {
    for (int i = 0; i <= VGPU_BATCHES; i++) {
        if (state->ring[i].start != NULL)
            VGPU_REAL(cuEventDestroy_v2)(state->ring[i].start);
        if (state->ring[i].end != NULL)
            VGPU_REAL(cuEventDestroy_v2)(state->ring[i].end);
    }
    free(state);
}

void vgpu_destroyed_collect(struct vgpu_process *process, struct vgpu_ctx_state *ctx_state, const struct vgpu_turn *turn) {
    struct vgpu_entry entry;
    for (unsigned looks = ctx_state->ends < LOOKS ? ctx_state->ends : LOOKS; looks > 0; looks--) {
        struct vgpu_stream_state *first = ctx_state->destroyed->next;
        vgpu_timing_collect(first, turn);
        if (first->pending != 0) {
            ctx_state->destroyed = first; // and so the last
            continue;
        }
        ctx_state->destroyed->next = first->next;
        if (ctx_state->destroyed == first)
            ctx_state->destroyed = NULL;
        ctx_state->ends--;
        vgpu_table_take(&process->table, key_of(first), &entry);
        free_state(first);
    }
}

void vgpu_forget_stream(struct vgpu_process *process, cu_stream stream) {
    struct vgpu_entry entry;
    cu_ctx popped;
    vgpu_thread_settle();
    vgpu_forget_contexts();
    vgpu_lock(&process->launches.stream_lock);
    bool found = vgpu_table_take(&process->table, vgpu_stream_key(stream, NULL), &entry);
    vgpu_unlock(&process->launches.stream_lock);
    if (!found)
        return;
    struct vgpu_stream_state *state = (struct vgpu_stream_state *)(uintptr_t)entry.value;
    bool pushed = VGPU_REAL(cuCtxPushCurrent_v2)(entry.owner) == CU_OK;
    int mode = vgpu_capture_mode(CU_CAPTURE_RELAXED);
    vgpu_lock(&state->ctx_state->lock);
    uint64_t now = vgpu_now();
    struct vgpu_turn turn = vgpu_turn(process, state->device, now);
    state->ends = true;
    if (state->open && atomic_load_explicit(&process->launches.captures, memory_order_relaxed) == 0)
        vgpu_timing_end(state, stream, false, now);
    vgpu_timing_collect(state, &turn);
    vgpu_destroyed_collect(process, state->ctx_state, &turn);
    bool kept = keep(process, state, entry.owner);
    if (!kept)
        vgpu_timing_drop(state);
    vgpu_unlock(&state->ctx_state->lock);
    vgpu_capture_mode(mode);
    if (pushed)
        VGPU_REAL(cuCtxPopCurrent_v2)(&popped);
    if (!kept)
        free_state(state);
}
