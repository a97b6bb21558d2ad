// SPDX-License-Identifier: Apache-2.0
//
// Which function of ours stands before each intercepted one of the driver's.

#ifndef VGPU_HOOKS_H
#define VGPU_HOOKS_H

#include <stdbool.h>

// What a lookup that found `found` under this exact symbol name must return:
// ours if the driver's own function was found, `found` otherwise.
void *vgpu_stand_in(const char *symbol, void *found);

// Reports whether `symbol` is in the table and, if it is, ours and the library that
// it stands for.
bool vgpu_intercepts(const char *symbol, void **ours, bool *driver_has_it);

#endif
