// SPDX-License-Identifier: Apache-2.0
//
// The beginning of contexts, only on devices of which the container has a share,
// and their end: they take their plain memory and arrays with them.
//
// Invariant: the entries of a dying context are marked before the driver is
// called, since the driver may give its handle to the next context at once.

#include "compute.h"
#include "memory.h"

static cu_result allowed(cu_device device) {
    cu_result result;
    struct vgpu_process *process = vgpu_process(&result);
    if (process == NULL)
        return result;
    // An ordinal that no device has is the driver's to refuse.
    bool exists = device >= 0 && device < process->device_count;
    return exists && vgpu_device_index(process, device) < 0 ? CU_NOT_PERMITTED : CU_OK;
}

#define CREATE(device, ...)                   \
    do {                                      \
        cu_result result = allowed(device);   \
        return result == CU_OK ? __VA_ARGS__ : result; \
    } while (0)

cu_result cuCtxCreate(cu_ctx *ctx, unsigned flags, cu_device device) {
    CREATE(device, VGPU_REAL(cuCtxCreate)(ctx, flags, device));
}
cu_result cuCtxCreate_v2(cu_ctx *ctx, unsigned flags, cu_device device) {
    CREATE(device, VGPU_REAL(cuCtxCreate_v2)(ctx, flags, device));
}
cu_result cuCtxCreate_v3(cu_ctx *ctx, void *affinity, int count, unsigned flags, cu_device device) {
    CREATE(device, VGPU_REAL(cuCtxCreate_v3)(ctx, affinity, count, flags, device));
}
cu_result cuCtxCreate_v4(cu_ctx *ctx, void *params, unsigned flags, cu_device device) {
    CREATE(device, VGPU_REAL(cuCtxCreate_v4)(ctx, params, flags, device));
}
cu_result cuDevicePrimaryCtxRetain(cu_ctx *ctx, cu_device device) {
    CREATE(device, VGPU_REAL(cuDevicePrimaryCtxRetain)(ctx, device));
}

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
