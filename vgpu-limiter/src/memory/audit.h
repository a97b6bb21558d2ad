// SPDX-License-Identifier: Apache-2.0
//
// Charges that first take off what dead processes have left charged.

#ifndef VGPU_AUDIT_H
#define VGPU_AUDIT_H

#include "memory/charge.h"

// Charges the bytes to the container, or returns false and charges nothing if
// that would exceed its limit on this device (index in the limits). It may wait for what is
// lent of that (lent.h).
bool vgpu_charge(struct vgpu_process *process, int device, uint64_t bytes);

// The same for memory that the driver has given already: it doesn't wait.
bool vgpu_charge_taken(struct vgpu_process *process, int device, uint64_t bytes);

// The same for an attempt that isn't the last: it isn't counted as a refusal.
bool vgpu_charge_audited(struct vgpu_process *process, int device, uint64_t bytes);
static inline bool vgpu_try_charge(struct vgpu_process *process, int device, uint64_t bytes) {
    return vgpu_likely(vgpu_charge_once(process, device, bytes)) || vgpu_charge_audited(process, device, bytes);
}

// Frees dead processes' slots and takes their bytes off the totals. Not `all`: at little
// cost, for a process that begins beside hundreds of others (vgpu_region_reap).
void vgpu_audit(struct vgpu_process *process, bool all);

// vgpu_audit, unless the process did it in the last 100 ms: then it returns false.
bool vgpu_audit_sometimes(struct vgpu_process *process);

#endif
