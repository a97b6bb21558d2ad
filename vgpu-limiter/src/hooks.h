// SPDX-License-Identifier: Apache-2.0
//
// The table of hooks.def at work: which function of the driver stands behind
// each intercepted one, and which of ours stands before each of the driver's.

#ifndef VGPU_HOOKS_H
#define VGPU_HOOKS_H

#include "base.h"
#include "driver.h"

enum vgpu_library { VGPU_CUDA, VGPU_NVML };

enum vgpu_hook {
#define HOOK(library, symbol, base, since, per_thread, why) VGPU_##symbol,
#define ALSO(library, symbol, base, since, per_thread)
#define USE(library, symbol) VGPU_##symbol,
#include "hooks.def"
#undef HOOK
#undef ALSO
#undef USE
    VGPU_HOOKS
};

extern void *_Atomic vgpu_reals[VGPU_HOOKS];
void *vgpu_resolve(enum vgpu_hook hook);

// The driver's own function; NULL where it hasn't been looked for yet.
static inline void *vgpu_known(enum vgpu_hook hook) {
    return atomic_load_explicit(&vgpu_reals[hook], memory_order_acquire);
}

static inline void *vgpu_real(enum vgpu_hook hook) {
    void *real = vgpu_known(hook);
    return vgpu_likely(real != NULL) ? real : vgpu_resolve(hook);
}

// The driver's own function, callable. Where the driver is not loaded or lacks
// it, a function that returns the library's code for that.
#define VGPU_REAL(symbol) ((__typeof__(&symbol))vgpu_real(VGPU_##symbol))

// Opens a library as dlopen does, without depending on where dlopen is. NULL if
// that fails.
void *vgpu_open(const char *path, int flags);

// Whether the driver has the function.
bool vgpu_has(enum vgpu_hook hook);

// What a lookup that found `found` under this exact symbol name must return:
// ours if the driver's own function was found, `found` otherwise.
void *vgpu_stand_in(const char *symbol, void *found);

// Whether `symbol` is in the table and, if it is, ours and the library that
// it stands for.
bool vgpu_intercepts(const char *symbol, void **ours, bool *driver_has_it);

#endif
