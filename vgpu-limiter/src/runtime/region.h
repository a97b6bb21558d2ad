// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include "runtime/base.h"
#include "vgpu_layout.h"

// The process's hold on the container's counters.
struct vgpu_region {
    struct vgpu_counters *counters;
    struct vgpu_slot *slot; // the process's own
    uint64_t slot_state;    // what slot->state is while it is ours
    int fd;                 // open for as long as the process lives: it carries the lock
    uint64_t device, inode; // of the file, to know it by
};

// Maps the counters for this many devices and claims a slot. Returns NULL, or
// what is wrong.
const char *vgpu_region_join(const char *path, uint32_t devices, struct vgpu_region *out);

// Maps the counters to read them without a slot. Returns NULL, or what is wrong.
// Used by a process that may hold a slot too: nothing of it is ever closed.
const char *vgpu_region_view(const char *path, uint32_t devices, struct vgpu_region *out);

// Reports whether slot i is claimed by a process that lives.
bool vgpu_region_lives(const struct vgpu_region *region, uint32_t i);

// Frees the slots of dead processes. Their bytes stay in the devices' totals
// until vgpu_audit. Costs a system call or two per slot in use, which take the longer, the
// more there are; not `all`: a short one each, but those whose number somebody has are
// left, such as those that nobody has waited for, and other processes' before an exec.
void vgpu_region_reap(const struct vgpu_region *region, bool all);

// The number of slots that may be in use.
uint32_t vgpu_region_slots(const struct vgpu_counters *counters);

// Takes the turn at something numbered within the container, if no other process has it:
// without waiting, and until it is ended or the process dies. A process can't tell
// whether it has it itself. VGPU_TURN_UNKNOWN: nor who has it.
enum vgpu_turn_taken { VGPU_TURN_OTHERS, VGPU_TURN_OURS, VGPU_TURN_UNKNOWN };
enum vgpu_turn_taken vgpu_region_take_turn(const struct vgpu_region *region, uint32_t number);
void vgpu_region_end_turn(const struct vgpu_region *region, uint32_t number);

static inline bool vgpu_slot_is_live(uint64_t state) { return (state & 1) != 0; }

#endif
