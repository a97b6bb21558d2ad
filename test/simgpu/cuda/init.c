// SPDX-License-Identifier: Apache-2.0
//
// init.c: cuInit: the state file, the client slot, the visible devices.
//
// Invariants:
// - cuInit never fails a program in any other way than by its return code.
// - The slot is taken once per process and given back at exit; a forked child
//   owns none and is uninitialised, as with the real driver.
// - Visible are permitted devices only (access.c); CUDA_VISIBLE_DEVICES chooses
//   and orders among them and ends at its first entry that names none.
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct sim_state *cu;
struct sim_client *me;
struct ordinal ordinals[SIM_MAX_DEVICES];
int ordinal_count;

static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
static bool forked;

// permitted lists what this process may use: whole GPUs, or in MIG mode the
// compute instances whose capability nodes open.
static unsigned permitted(struct ordinal *list, unsigned room) {
    unsigned n = 0;
    for (unsigned d = 0; d < cu->device_count; d++) {
        struct sim_device *device = &cu->devices[d];
        struct ordinal o = {d, SIM_WHOLE_GPU, SIM_WHOLE_GPU, device, sim_model(device->model)};
        if (!o.m || atomic_load(&device->lost) || !sim_device_permitted(cu, d)) continue;
        if (!atomic_load(&device->mig_current)) {
            if (n < room) list[n++] = o;
            continue;
        }
        for (o.gi = 0; o.gi < SIM_MAX_INSTANCES; o.gi++)
            for (o.ci = 0; o.ci < 8; o.ci++)
                if (device->gi[o.gi].used && device->gi[o.gi].ci[o.ci].used && n < room &&
                    sim_instance_permitted(cu, d, o.gi, o.ci))
                    list[n++] = o;
    }
    return n;
}

bool is_named(const struct ordinal *o, unsigned index, const char *name) {
    char uuid[64], *end;
    unsigned long n = strtoul(name, &end, 10);
    if (end != name && !*end) return n == index;
    if (o->gi == SIM_WHOLE_GPU)
        sim_uuid_text(uuid, sizeof uuid, "GPU", o->d->uuid);
    else
        sim_uuid_text(uuid, sizeof uuid, "MIG", o->d->gi[o->gi].ci[o->ci].uuid);
    // A UUID may be cut short where it is still unmistakable.
    return strlen(name) > 4 && strncasecmp(uuid, name, strlen(name)) == 0;
}

// served leaves, of n devices, those that the MPS server has, in its order.
static unsigned served(struct ordinal *all, unsigned n, const struct mps_grant *by) {
    struct ordinal kept[SIM_MAX_DEVICES];
    unsigned m = 0;
    for (unsigned i = 0; i < by->count; i++)
        for (unsigned k = 0; k < n; k++)
            if (all[k].dev == by->devices[i]) kept[m++] = all[k];
    memcpy(all, kept, m * sizeof *all);
    return m;
}

static void choose(const struct mps_grant *mps) {
    struct ordinal all[SIM_MAX_DEVICES * 8];
    unsigned n = permitted(all, sizeof all / sizeof *all);
    if (mps) n = served(all, n, mps);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char names[4096], *rest = names, *name;
    ordinal_count = 0;
    snprintf(names, sizeof names, "%s", visible ? visible : "");
    if (!visible) {
        // Without a choice a program sees whole GPUs, or the first MIG instance.
        for (unsigned i = 0; i < n && ordinal_count < SIM_MAX_DEVICES; i++) {
            if (all[i].gi != SIM_WHOLE_GPU && ordinal_count) continue;
            ordinals[ordinal_count++] = all[i];
        }
    }
    while (visible && (name = strsep(&rest, ",")) && ordinal_count < SIM_MAX_DEVICES) {
        unsigned i = 0;
        while (i < n && !is_named(&all[i], i, name)) i++;
        if (i == n) break;
        ordinals[ordinal_count++] = all[i];
    }
    for (int i = 0; i < ordinal_count; i++) {
        me->work[ordinals[i].dev].gi = ordinals[i].gi;
        me->work[ordinals[i].dev].ci = ordinals[i].ci;
    }
}

static void in_child(void) {
    me = NULL;
    cu = NULL;
    forked = true;
}

static CUresult start(void) {
    if (me) return CUDA_SUCCESS;
    if (forked) return CUDA_ERROR_NOT_INITIALIZED;
    cu = sim_open();
    if (!cu || !cu->device_count) return CUDA_ERROR_NO_DEVICE;
    if (!va_ready()) return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_client *slot = sim_attach(cu);
    if (!slot) return CUDA_ERROR_OPERATING_SYSTEM;
    me = slot;
    struct mps_grant mps;
    CUresult ret = mps_connect(&mps);
    if (ret == CUDA_SUCCESS) {
        choose(mps.count ? &mps : NULL);
        ret = ordinal_count ? mps_limits(&mps) : CUDA_ERROR_NO_DEVICE;
    }
    if (ret == CUDA_SUCCESS) {
        pthread_atfork(NULL, NULL, in_child);
        return CUDA_SUCCESS;
    }
    me = NULL;
    sim_detach(cu, slot);
    return ret;
}

CUresult cuInit(unsigned int flags) {
    NEED(flags == 0);
    pthread_mutex_lock(&once);
    CUresult ret = start();
    pthread_mutex_unlock(&once);
    return ret;
}

// Threads that still call when the process exits must neither crash nor touch
// the slot's next owner: they find a slot that nobody looks at.
__attribute__((destructor)) static void leave(void) {
    static struct sim_client nobody;
    struct sim_client *slot = me;
    if (!slot) return;
    me = &nobody;
    sim_detach(cu, slot);
}

// Works without cuInit, as in the real library.
CUresult cuDriverGetVersion(int *version) {
    NEED(version);
    struct sim_state *s = cu ? cu : sim_open();
    *version = s ? s->cuda_version : CUDA_VERSION;
    return CUDA_SUCCESS;
}

#define NAME(code, value, text) \
    case code:                  \
        *out = #code;           \
        return CUDA_SUCCESS;
#define TEXT(code, value, text) \
    case code:                  \
        *out = text;            \
        return CUDA_SUCCESS;

CUresult cuGetErrorName(CUresult error, const char **out) {
    NEED(out);
    switch (error) { CU_RESULT_TABLE(NAME) }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **out) {
    NEED(out);
    switch (error) { CU_RESULT_TABLE(TEXT) }
    *out = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
