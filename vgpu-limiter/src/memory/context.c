// SPDX-License-Identifier: Apache-2.0
//
// The beginning of contexts, only on devices of which the container has a share
// and where what they take fits, and their end: they take their plain memory,
// arrays and modules with them.
//
// Invariants:
//   1. The entries of a dying context are marked before the driver is called,
//      since the driver may give its handle to the next context at once, and their
//      addresses to other threads: who gets one waits until the driver is through.
//   2. What threads remember of a handle, such as its device, is forgotten when it
//      is given out, before anybody can use it.
//   3. Whether a device's primary context is there, and its charge, change
//      together: under contexts.lock, also across the driver's call.

#include "memory/overhead.h"
#include "memory/pool.h"
#include "memory/vmm.h"

#include <stdlib.h>

// The forms differ in their arguments only.
#define CREATE(symbol, context, destroy, parameters, arguments)                    \
    cu_result symbol parameters {                                                  \
        struct vgpu_call call;                                                     \
        if (vgpu_context_begin(&call, device) != CU_OK)                            \
            return call.result;                                                    \
        call.result = VGPU_REAL(symbol) arguments;                                 \
        if (!vgpu_context_commit(&call, call.result == CU_OK ? *context : NULL))   \
            VGPU_REAL(destroy)(*context);                                          \
        return call.result;                                                        \
    }
CREATE(cuCtxCreate, ctx, cuCtxDestroy, (cu_ctx *ctx, unsigned flags, cu_device device), (ctx, flags, device))
CREATE(cuCtxCreate_v2, ctx, cuCtxDestroy_v2, (cu_ctx *ctx, unsigned flags, cu_device device), (ctx, flags, device))
CREATE(cuCtxCreate_v3, ctx, cuCtxDestroy_v2, (cu_ctx *ctx, void *affinity, int count, unsigned flags, cu_device device),
       (ctx, affinity, count, flags, device))
CREATE(cuCtxCreate_v4, ctx, cuCtxDestroy_v2, (cu_ctx *ctx, void *params, unsigned flags, cu_device device),
       (ctx, params, flags, device))
CREATE(cuGreenCtxCreate, green, cuGreenCtxDestroy, (cu_green *green, void *resources, cu_device device, unsigned flags),
       (green, resources, device, flags))
// For the graphics libraries.
CREATE(cuGLCtxCreate, ctx, cuCtxDestroy, (cu_ctx *ctx, unsigned flags, cu_device device), (ctx, flags, device))
CREATE(cuGLCtxCreate_v2, ctx, cuCtxDestroy_v2, (cu_ctx *ctx, unsigned flags, cu_device device), (ctx, flags, device))
CREATE(cuVDPAUCtxCreate, ctx, cuCtxDestroy, (cu_ctx *ctx, unsigned flags, cu_device device, unsigned vdp, void *find),
       (ctx, flags, device, vdp, find))
CREATE(cuVDPAUCtxCreate_v2, ctx, cuCtxDestroy_v2, (cu_ctx *ctx, unsigned flags, cu_device device, unsigned vdp, void *find),
       (ctx, flags, device, vdp, find))

static struct vgpu_lock *context_lock(struct vgpu_process *process, cu_device device) {
    return &process->contexts.lock[device >= 0 && device < VGPU_ORDINALS ? device : 0];
}

static bool is_active(cu_device device) {
    unsigned flags;
    int active = 0;
    return VGPU_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CU_OK && active;
}

static cu_result retain(cu_ctx *ctx, cu_device device) {
    struct vgpu_call call;
    if (vgpu_context_begin(&call, device) != CU_OK)
        return call.result;
    call.result = VGPU_REAL(cuDevicePrimaryCtxRetain)(ctx, device);
    if (!vgpu_context_commit(&call, call.result == CU_OK ? *ctx : NULL))
        VGPU_REAL(cuDevicePrimaryCtxRelease_v2)(device);
    return call.result;
}

cu_result cuDevicePrimaryCtxRetain(cu_ctx *ctx, cu_device device) {
    VGPU_PROCESS(process);
    vgpu_lock(context_lock(process, device));
    cu_result result = is_active(device) ? VGPU_REAL(cuDevicePrimaryCtxRetain)(ctx, device)
                                         : retain(ctx, device);
    vgpu_unlock(context_lock(process, device));
    return result;
}

// A context on its way out.
struct dying {
    struct vgpu_process *process;
    cu_ctx ctx;
    bool begins_anew; // it keeps its handle and what it takes itself
    struct vgpu_record *arrays; // under which memory was mapped
};

// An owner that no context has.
static void *mark_of(struct dying *dying) { return (void *)((uintptr_t)dying | VGPU_DYING); }

static bool give_to(void *owner, struct vgpu_entry *entry) {
    entry->owner = owner;
    return true;
}

static bool drop(void *with, struct vgpu_entry *entry) {
    struct dying *dying = with;
    enum vgpu_class class = vgpu_class_of(entry->key);
    if (class == VGPU_CONTEXT && dying->begins_anew) {
        entry->owner = dying->ctx;
        return true;
    }
    if (class == VGPU_SPARSE) { // not under the table's lock
        struct vgpu_record *array = (struct vgpu_record *)(uintptr_t)entry->value;
        array->next = dying->arrays;
        dying->arrays = array;
        return false;
    }
    if (class == VGPU_STREAM) // its events have gone with the context
        free((void *)(uintptr_t)entry->value);
    else if (class != VGPU_PART)
        vgpu_uncharge_entry(dying->process, entry);
    if (class == VGPU_CONTEXT)
        atomic_fetch_sub(&dying->process->contexts.count[entry->value >> 48], 1);
    return false;
}

static void die_begin(struct dying *dying, struct vgpu_process *process, cu_ctx ctx) {
    *dying = (struct dying){.process = process, .ctx = ctx};
    vgpu_lock(&process->contexts.dying_lock);
    if (ctx != NULL)
        vgpu_table_visit(&process->table, ctx, give_to, mark_of(dying));
}

static void die_end(struct dying *dying, bool dead) {
    if (dead && dying->ctx != NULL) {
        vgpu_forget_contexts();
        vgpu_lock(&dying->process->launches.stream_lock); // no thread charges a stream state while it is held
        vgpu_table_visit(&dying->process->table, mark_of(dying), drop, dying);
        vgpu_unlock(&dying->process->launches.stream_lock);
    }
    if (!dead && dying->ctx != NULL)
        vgpu_table_visit(&dying->process->table, mark_of(dying), give_to, dying->ctx);
    vgpu_unlock(&dying->process->contexts.dying_lock);
    if (dying->ctx == NULL)
        return;
    vgpu_forget_contexts();
    VGPU_TEST_STEP();
    vgpu_sparse_end(dying->process, dying->arrays);
    vgpu_refresh_pools(dying->process);
}

static cu_result destroy(cu_ctx ctx, cu_result (*real)(cu_ctx)) {
    struct dying dying;
    VGPU_PROCESS(process);
    die_begin(&dying, process, ctx);
    cu_result result = real(ctx);
    unsigned version; // cuCtxDetach may leave it to others
    bool stays = real == VGPU_REAL(cuCtxDetach) && VGPU_REAL(cuCtxGetApiVersion)(ctx, &version) == CU_OK;
    die_end(&dying, result == CU_OK && !stays);
    return result;
}

cu_result cuCtxDestroy(cu_ctx ctx) { return destroy(ctx, VGPU_REAL(cuCtxDestroy)); }
cu_result cuCtxDetach(cu_ctx ctx) { return destroy(ctx, VGPU_REAL(cuCtxDetach)); }
cu_result cuCtxDestroy_v2(cu_ctx ctx) { return destroy(ctx, VGPU_REAL(cuCtxDestroy_v2)); }

cu_result cuGreenCtxDestroy(cu_green green) {
    cu_result (*real)(cu_green) = vgpu_real(VGPU_cuGreenCtxDestroy);
    return destroy((cu_ctx)green, (cu_result(*)(cu_ctx))real);
}

// The handle of the device's primary context, NULL if that isn't active.
static cu_ctx primary(cu_device device) {
    cu_ctx ctx = NULL;
    if (!is_active(device) || VGPU_REAL(cuDevicePrimaryCtxRetain)(&ctx, device) != CU_OK)
        return NULL;
    VGPU_REAL(cuDevicePrimaryCtxRelease_v2)(device);
    return ctx;
}

static cu_result leave_primary(enum vgpu_hook hook, cu_device device) {
    struct dying dying;
    VGPU_PROCESS(process);
    cu_result (*real)(cu_device) = vgpu_real(hook);
    vgpu_lock(context_lock(process, device));
    die_begin(&dying, process, primary(device));
    cu_result result = real(device);
    // A reset context may stay active while it is retained; its memory is gone.
    bool reset = hook == VGPU_cuDevicePrimaryCtxReset || hook == VGPU_cuDevicePrimaryCtxReset_v2;
    dying.begins_anew = is_active(device);
    die_end(&dying, result == CU_OK && (reset || !dying.begins_anew));
    vgpu_unlock(context_lock(process, device));
    return result;
}

cu_result cuDevicePrimaryCtxRelease(cu_device device) {
    return leave_primary(VGPU_cuDevicePrimaryCtxRelease, device);
}
cu_result cuDevicePrimaryCtxRelease_v2(cu_device device) {
    return leave_primary(VGPU_cuDevicePrimaryCtxRelease_v2, device);
}
cu_result cuDevicePrimaryCtxReset(cu_device device) {
    return leave_primary(VGPU_cuDevicePrimaryCtxReset, device);
}
cu_result cuDevicePrimaryCtxReset_v2(cu_device device) {
    return leave_primary(VGPU_cuDevicePrimaryCtxReset_v2, device);
}
