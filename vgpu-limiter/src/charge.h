// SPDX-License-Identifier: Apache-2.0
//
// Device memory as the container is charged for it.

#ifndef VGPU_CHARGE_H
#define VGPU_CHARGE_H

#include "process.h"

// Between two steps that other processes can see half done. Nothing here; the
// test makes it a place to be interrupted and killed at.
#ifdef VGPU_TEST_STEP
void VGPU_TEST_STEP(void);
#else
#define VGPU_TEST_STEP() ((void)0)
#endif

// Charges the bytes to the container, or returns false and charges nothing if
// that would exceed its limit on this device (index in the limits).
bool vgpu_charge(struct vgpu_process *process, int device, uint64_t bytes);

// The same for an attempt that isn't the last: it isn't counted as a refusal.
bool vgpu_try_charge(struct vgpu_process *process, int device, uint64_t bytes);

// Takes back what vgpu_charge has charged.
void vgpu_uncharge(struct vgpu_process *process, int device, uint64_t bytes);

// The two halves of vgpu_uncharge, for bytes that may be left to others: between
// them the caller settles whether somebody else holds the memory. If so, the
// container stays charged.
void vgpu_hand_over_begin(struct vgpu_process *process, int device);
void vgpu_hand_over_end(struct vgpu_process *process, int device, uint64_t bytes, bool stays);

// Reads what a slot's process holds of a device. They are exactly the bytes that it
// held at one instant if this returns true and vgpu_begun, called afterwards, says what
// `begun` does. Otherwise something was under way, and they may be less than nothing,
// modulo 2^48.
bool vgpu_read_held(const struct vgpu_slot *slot, int device, uint64_t *begun, uint64_t *bytes);
uint64_t vgpu_begun(const struct vgpu_slot *slot, int device);

// The bytes charged to the container now.
static inline uint64_t vgpu_charged(const struct vgpu_process *process, int device) {
    return vgpu_load(&process->region.counters->header.device[device].memory) & VGPU_BYTES_MASK;
}

// Frees dead processes' slots and takes their bytes off the totals.
void vgpu_audit(struct vgpu_process *process);

// The same at little cost, for a process that begins beside hundreds of others: not all
// of the dead are found (vgpu_region_reap).
void vgpu_audit_first(struct vgpu_process *process);

// vgpu_audit, unless the process did it in the last 100 ms: then it returns false.
bool vgpu_audit_sometimes(struct vgpu_process *process);

#endif
