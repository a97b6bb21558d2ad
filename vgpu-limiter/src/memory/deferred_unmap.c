// SPDX-License-Identifier: Apache-2.0
//
// Memory made by cuMemCreate that the process refers to no more, and the driver
// still has: a stream has yet to unmap it.
//
// Invariants:
//   1. It counts as mapped until then: what is charged is never less than what the
//      driver has.
//   2. Nobody waits for it. It is looked at by whoever is refused memory or asks how
//      much there is; until then what is charged is an upper bound.
//   3. All of it under vmm.lock.

#include "memory/deferred_unmap.h"

#include <stdlib.h>

#define DISABLE_TIMING 2 // flag of an event

struct vgpu_deferred_unmap {
    struct vgpu_record *record;
    unsigned mappings; // of the record, as long as it is here
    cu_event event; // until it
    cu_ctx ctx; // the event's
    struct vgpu_deferred_unmap *next;
};

// Without memory for it, what it counts stays charged until the process ends.
void vgpu_deferred_add(struct vgpu_deferred_unmap **list, struct vgpu_record *record) {
    struct vgpu_deferred_unmap *at = *list;
    while (at != NULL && at->record != record)
        at = at->next;
    if (at == NULL && (at = malloc(sizeof *at)) != NULL) {
        *at = (struct vgpu_deferred_unmap){.record = record, .next = *list};
        *list = at;
    }
    if (at != NULL)
        at->mappings++;
}

static void finish(struct vgpu_process *process, struct vgpu_deferred_unmap *one) {
    one->record->mappings -= one->mappings;
    vgpu_record_drop(process, one->record);
    free(one);
}

void vgpu_deferred_end(struct vgpu_process *process, struct vgpu_deferred_unmap *list) {
    for (struct vgpu_deferred_unmap *next; list != NULL; list = next) {
        next = list->next;
        finish(process, list);
    }
}

static void end_reclaim(struct vgpu_process *process) {
    if (process->vmm.deferred == NULL)
        atomic_store(&process->vmm.reclaim, NULL);
}

// Without an event, or an answer, nobody knows, and it stays until its context goes.
static bool is_through(struct vgpu_deferred_unmap *one) {
    if (((uintptr_t)one->ctx & VGPU_DYING) != 0) // the event may have gone already
        return false;
    if (one->event == NULL || VGPU_REAL(cuEventQuery)(one->event) != CU_OK)
        return false;
    VGPU_REAL(cuEventDestroy_v2)(one->event);
    return true;
}

static void look(struct vgpu_process *process) {
    struct vgpu_deferred_unmap *through = NULL;
    int mode = vgpu_capture_mode(CU_CAPTURE_RELAXED);
    for (struct vgpu_deferred_unmap **at = &process->vmm.deferred, *one; (one = *at) != NULL;) {
        if (!is_through(one)) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        one->next = through;
        through = one;
    }
    vgpu_capture_mode(mode);
    vgpu_deferred_end(process, through);
    end_reclaim(process);
}

static void reclaim(struct vgpu_process *process) {
    vgpu_lock(&process->vmm.lock);
    look(process);
    vgpu_unlock(&process->vmm.lock);
}

static void record_event(struct vgpu_deferred_unmap *one, bool per_thread, cu_stream stream) {
    if (VGPU_REAL(cuEventCreate)(&one->event, DISABLE_TIMING) != CU_OK) {
        one->event = NULL;
    } else if (VGPU_REAL_OF(cuEventRecord, per_thread)(one->event, stream) != CU_OK) {
        VGPU_REAL(cuEventDestroy_v2)(one->event);
        one->event = NULL;
    }
}

void vgpu_deferred_until(struct vgpu_process *process, struct vgpu_deferred_unmap *list, bool per_thread,
                         cu_stream stream) {
    cu_ctx ctx = NULL, popped;
    if (list == NULL)
        return;
    bool other = (uintptr_t)stream > 2 && VGPU_REAL(cuStreamGetCtx)(stream, &ctx) == CU_OK &&
                 VGPU_REAL(cuCtxPushCurrent_v2)(ctx) == CU_OK;
    if (!other)
        VGPU_REAL(cuCtxGetCurrent)(&ctx);
    struct vgpu_deferred_unmap *last = NULL;
    for (struct vgpu_deferred_unmap *one = list; one != NULL; one = one->next) {
        record_event(one, per_thread, stream);
        one->ctx = ctx;
        last = one;
    }
    if (other)
        VGPU_REAL(cuCtxPopCurrent_v2)(&popped);
    last->next = process->vmm.deferred;
    process->vmm.deferred = list;
    atomic_store(&process->vmm.reclaim, reclaim);
    look(process);
}

void vgpu_deferred_give(struct vgpu_process *process, cu_ctx from, cu_ctx to) {
    for (struct vgpu_deferred_unmap *one = process->vmm.deferred; one != NULL; one = one->next)
        if (one->ctx == from)
            one->ctx = to;
}

// The context has taken its streams and events with it.
void vgpu_deferred_forget(struct vgpu_process *process, cu_ctx ctx) {
    struct vgpu_deferred_unmap *gone = NULL;
    for (struct vgpu_deferred_unmap **at = &process->vmm.deferred, *one; (one = *at) != NULL;) {
        if (one->ctx != ctx) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        one->next = gone;
        gone = one;
    }
    vgpu_deferred_end(process, gone);
    end_reclaim(process);
}
