// SPDX-License-Identifier: Apache-2.0
//
// Charges beyond what is ready of a limit: the rest is lent to idle slices.

#ifndef VGPU_LENT_H
#define VGPU_LENT_H

#include "memory/charge.h"

// Charges the bytes, which vgpu_charge_once has refused, if the limit has room for them.
// Before that it waits VGPU_LENT_NS at most for the node side to take back what is lent.
// Returns false, with nothing charged and without a wait, if the limit has none. Not under a
// hot lock.
bool vgpu_charge_lent(struct vgpu_process *process, int device, uint64_t bytes);

#define VGPU_LENT_NS UINT64_C(2000000000)

#endif
