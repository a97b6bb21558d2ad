// SPDX-License-Identifier: Apache-2.0
//
// The end of contexts, which take their plain memory and arrays with them.
//
// Invariant: the entries of a dying context are marked before the driver is
// called, since the driver may give its handle to the next context at once.

#include "compute.h"
#include "memory.h"

static bool give_to(void *owner, struct vgpu_entry *entry) {
    entry->owner = owner;
    return true;
}

static bool drop(void *process, struct vgpu_entry *entry) {
    if (vgpu_class_of(entry->key) == VGPU_STREAM)
        vgpu_drop_track(entry->value);
    else
        vgpu_uncharge_value(process, entry->value);
    return false;
}

// A context on its way out; its address is an owner that no context has.
struct dying {
    struct vgpu_process *process;
    cu_ctx ctx;
};

static void die_begin(struct dying *dying, struct vgpu_process *process, cu_ctx ctx) {
    *dying = (struct dying){process, ctx};
    if (ctx != NULL)
        vgpu_table_visit(&process->memory, ctx, give_to, dying);
}

static void die_end(struct dying *dying, bool dead) {
    if (dying->ctx == NULL)
        return;
    if (dead)
        vgpu_table_visit(&dying->process->memory, dying, drop, dying->process);
    else
        vgpu_table_visit(&dying->process->memory, dying, give_to, dying->ctx);
    vgpu_forget_contexts();
    vgpu_refresh_pools(dying->process);
}

static cu_result destroy(enum vgpu_hook hook, cu_ctx ctx) {
    struct dying dying;
    cu_result result;
    cu_result (*real)(cu_ctx) = vgpu_real(hook);
    struct vgpu_process *process = vgpu_process(&result);
    if (process == NULL)
        return result;
    die_begin(&dying, process, ctx);
    result = real(ctx);
    die_end(&dying, result == CU_OK);
    return result;
}

cu_result cuCtxDestroy(cu_ctx ctx) { return destroy(VGPU_cuCtxDestroy, ctx); }
cu_result cuCtxDestroy_v2(cu_ctx ctx) { return destroy(VGPU_cuCtxDestroy_v2, ctx); }

// The handle of the device's primary context, NULL if that isn't active.
static cu_ctx primary(cu_device device) {
    unsigned flags;
    int active = 0;
    cu_ctx ctx = NULL;
    if (VGPU_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CU_OK || !active ||
        VGPU_REAL(cuDevicePrimaryCtxRetain)(&ctx, device) != CU_OK)
        return NULL;
    VGPU_REAL(cuDevicePrimaryCtxRelease_v2)(device);
    return ctx;
}

static cu_result leave_primary(enum vgpu_hook hook, cu_device device) {
    struct dying dying;
    cu_result result;
    cu_result (*real)(cu_device) = vgpu_real(hook);
    struct vgpu_process *process = vgpu_process(&result);
    if (process == NULL)
        return result;
    die_begin(&dying, process, primary(device));
    result = real(device);
    unsigned flags;
    int active = 1;
    VGPU_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active);
    // A reset context stays active while it is retained; its memory is gone.
    bool reset = hook == VGPU_cuDevicePrimaryCtxReset || hook == VGPU_cuDevicePrimaryCtxReset_v2;
    die_end(&dying, result == CU_OK && (reset || !active));
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
