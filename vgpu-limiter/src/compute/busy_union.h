// SPDX-License-Identifier: Apache-2.0
//
// Counts the device's time once per container, whichever processes and streams worked.

#ifndef VGPU_BUSY_UNION_H
#define VGPU_BUSY_UNION_H

#include "runtime/base.h"
#include "vgpu_layout.h"

// Enters the time from start to end (CLOCK_MONOTONIC, ns; not after now) and returns how
// much of it had not been entered before.
uint64_t vgpu_busy_union_enter(struct vgpu_calendar *calendar, uint64_t now, uint64_t start, uint64_t end);

// The same for ns of work that may have been at any moments from start to end, evenly.
uint64_t vgpu_busy_union_spread(struct vgpu_calendar *calendar, uint64_t now, uint64_t start, uint64_t end, uint64_t ns);

#endif
