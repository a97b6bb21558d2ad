// SPDX-License-Identifier: Apache-2.0
//
// The table of hooks.def at work: lookups of the driver's functions find ours.
//
// Invariant: a pointer that is not known to be one of the table's functions is handed
// on as it is.

#include "hooks.h"

#include "runtime/driver.h"
#include "runtime/object.h"

#include <string.h>

// NULL for what the library only calls.
static void *const ours_of[VGPU_HOOKS] = {
#define HOOK(library, symbol, base, since, per_thread, why) (void *)&symbol,
#define ALSO(library, symbol, base, since, per_thread)
#define USE(library, symbol) NULL,
#include "runtime/hooks.def"
#undef HOOK
#undef ALSO
#undef USE
};

// What cuGetProcAddress knows the functions of the table by.
struct name {
    const char *base;
    int since;
    bool per_thread;
    int16_t hook;
};

static const struct name names[] = {
#define HOOK(library, symbol, base, since, per_thread, why) {#base, since, per_thread, VGPU_##symbol},
#define ALSO(library, symbol, base, since, per_thread) {#base, since, per_thread, VGPU_##symbol},
#define USE(library, symbol)
#include "runtime/hooks.def"
#undef HOOK
#undef ALSO
#undef USE
};
#define NAMES (sizeof names / sizeof names[0])

static int by_symbol(const char *symbol) {
    bool nvml = symbol[0] == 'n' && symbol[1] == 'v' && symbol[2] == 'm' && symbol[3] == 'l';
    if (!nvml && (symbol[0] != 'c' || symbol[1] != 'u')) // so far without strcmp: see dlsym.c
        return -1;
    for (int i = 0; i < VGPU_HOOKS; i++)
        if (ours_of[i] != NULL && strcmp(vgpu_driver_functions[i].symbol, symbol) == 0)
            return i;
    return -1;
}

bool vgpu_intercepts(const char *symbol, void **ours, bool *driver_has_it) {
    int i = by_symbol(symbol);
    if (i < 0)
        return false;
    *ours = ours_of[i];
    *driver_has_it = vgpu_has((enum vgpu_hook)i);
    return true;
}

void *vgpu_stand_in(const char *symbol, void *found) {
    int i = by_symbol(symbol);
    struct vgpu_object object;
    if (i < 0 || found == NULL || !vgpu_object_at(found, &object) || object.soname == NULL ||
        strcmp(object.soname, vgpu_sonames[vgpu_driver_functions[i].library]) != 0)
        return found;
    vgpu_real((enum vgpu_hook)i); // keeps the library loaded from here on
    return ours_of[i];
}

// The driver may export the form that it answered with under a name that this
// table doesn't have: a later version with arguments of its own.
static bool is_unknown_form(const char *base, const void *found) {
    static const char *const versions[] = {"", "_v2", "_v3", "_v4", "_v5"};
    static const char *const variants[] = {"", "_ptsz", "_ptds"};
    struct vgpu_object object;
    if (!vgpu_object_named(vgpu_sonames[VGPU_CUDA], &object))
        return true;
    for (size_t v = 0; v < sizeof versions / sizeof versions[0]; v++) {
        for (size_t t = 0; t < sizeof variants / sizeof variants[0]; t++) {
            char name[96] = {0};
            if (strlen(base) + 9 >= sizeof name)
                return true;
            strcat(strcat(strcpy(name, base), versions[v]), variants[t]);
            if (vgpu_object_function(&object, name) == found)
                return by_symbol(name) < 0;
        }
    }
    return false;
}

// The row that cuGetProcAddress's rules choose: the newest form that the version
// knows, for the kind of default stream that the flags ask for. -1 if none.
static int by_rules(const char *base, int version, uint64_t flags) {
    const struct name *best = NULL;
    for (size_t i = 0; i < NAMES; i++) {
        const struct name *name = &names[i];
        if (strcmp(name->base, base) != 0 || name->since > version ||
            (name->per_thread && (flags & CU_PROC_PER_THREAD) == 0))
            continue;
        if (best == NULL || name->per_thread > best->per_thread ||
            (name->per_thread == best->per_thread && name->since > best->since))
            best = name;
    }
    return best != NULL ? best->hook : -1;
}

// The row whose function of the driver has this address, by this name if one
// of several does. -1 if none.
static int by_address(const char *base, const void *found) {
    int any = -1;
    for (size_t i = 0; i < NAMES; i++) {
        enum vgpu_hook hook = (enum vgpu_hook)names[i].hook;
        if (vgpu_driver_functions[hook].library != VGPU_CUDA || vgpu_real(hook) != found)
            continue;
        if (strcmp(names[i].base, base) == 0)
            return (int)hook;
        any = (int)hook;
    }
    return any;
}

// What cuGetProcAddress must answer where the driver answered `found`. The
// address tells the form, by the rules where several forms have one address; for
// an address that the driver doesn't export, the rules alone tell it.
static void *answer(const char *base, void *found, int version, uint64_t flags) {
    int best = by_rules(base, version, flags);
    if (best >= 0 && vgpu_real((enum vgpu_hook)best) == found)
        return ours_of[best];
    int same = by_address(base, found);
    if (same >= 0)
        return ours_of[same];
    if (best < 0 || is_unknown_form(base, found))
        return found;
    if (!vgpu_has((enum vgpu_hook)best))
        atomic_store(&vgpu_reals[best], found);
    return ours_of[best];
}

cu_result cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    cu_result result = VGPU_REAL(cuGetProcAddress)(symbol, function, version, flags);
    if (result == CU_OK && symbol != NULL && function != NULL && *function != NULL)
        *function = answer(symbol, *function, version, flags);
    return result;
}

cu_result cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                              int *status) {
    cu_result result = VGPU_REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status);
    if (result == CU_OK && symbol != NULL && function != NULL && *function != NULL)
        *function = answer(symbol, *function, version, flags);
    return result;
}
