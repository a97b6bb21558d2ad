// SPDX-License-Identifier: Apache-2.0
//
// Device memory as the container is charged for it.

#ifndef VGPU_CHARGE_H
#define VGPU_CHARGE_H

#include "runtime/process.h"

// Charges the bytes to the container's device (index in the limits). Returns false, with
// nothing charged, if that would exceed what is ready of the limit, of which dead processes
// may have some (audit.h).
bool vgpu_charge_once(struct vgpu_process *process, int device, uint64_t bytes);

// The same up to the limit, whatever of it is lent.
bool vgpu_charge_promised(struct vgpu_process *process, int device, uint64_t bytes);

// Raises a word of the counters to the bytes, if it is less.
void vgpu_raise_to(uint64_t *most, uint64_t bytes);

// Counts a charge of the bytes that was refused for good.
void vgpu_count_refusal(struct vgpu_process *process, int device, uint64_t bytes);

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
static inline uint64_t vgpu_begun(const struct vgpu_slot *slot, int device) {
    return vgpu_load(&slot->device[device].begun);
}

// The bytes charged to the container now.
static inline uint64_t vgpu_charged(const struct vgpu_process *process, int device) {
    return vgpu_total(process, device) & VGPU_BYTES_MASK;
}

#endif
