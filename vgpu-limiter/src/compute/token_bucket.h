// SPDX-License-Identifier: Apache-2.0
//
// The container's device time on one device, shared by its processes.

#ifndef VGPU_TOKEN_BUCKET_H
#define VGPU_TOKEN_BUCKET_H

#include "compute/cost.h"
#include "compute/timeshare.h"

// The moment from which a launch that is expected to cost so much may start: not after
// `now` if that is right now.
uint64_t vgpu_bucket_due(const struct vgpu_process *process, int device,
                         const struct vgpu_turn *turn, uint64_t now, struct vgpu_price price);

// Reports whether the counters' words can be true. Others would make launches wait for ever.
bool vgpu_bucket_is_possible(const struct vgpu_process *process, int device, uint64_t now);

// How much may be launched after it without asking again: what is left of the
// container's turn.
uint64_t vgpu_bucket_room(const struct vgpu_process *process, int device,
                          const struct vgpu_turn *turn, uint64_t now);

// A launch's place among those of the container that wait. Zero at first.
struct vgpu_queue {
    uint64_t since; // when it began to wait
    uint64_t first, behind; // the launch that it waits behind, by its `since`, and for how long, ns
};

// The moment from which a launch that may start doesn't go before one that has
// waited much longer: not after `now` if that is right now.
uint64_t vgpu_bucket_behind(const struct vgpu_process *process, int device,
                            const struct vgpu_turn *turn, uint64_t now, struct vgpu_queue *queue);

// Sleeps until `until`, though not for long at a time: what was said of it may
// change. Returns the time then.
uint64_t vgpu_bucket_wait(struct vgpu_process *process, int device, uint64_t now, uint64_t until,
                          struct vgpu_queue *queue);

// The launch goes.
void vgpu_bucket_go(const struct vgpu_process *process, int device, const struct vgpu_turn *turn, uint64_t now,
                    const struct vgpu_queue *queue);

// Others go behind the launch no more, but behind the one that has waited since `next`, if
// that isn't 0.
void vgpu_bucket_pass(const struct vgpu_process *process, int device, const struct vgpu_queue *queue, uint64_t next);

#define VGPU_LONGEST_BEHIND_NS UINT64_C(10000000) // a live waiter has looked by then

// A launch isn't through at `now`: moves the moment on until which the container works, if
// it has passed; the later it is, the farther. `moved` is by how much that was done before.
// Returns by how much it is now.
uint64_t vgpu_bucket_late(const struct vgpu_process *process, int device, uint64_t now, uint64_t moved);

// Charges launches, at so much percent, with device time as it is expected; then the difference to what was
// measured, which may be negative, and what was said of a launch that was late.
void vgpu_bucket_charge(struct vgpu_process *process, int device, uint32_t core, uint64_t now, uint64_t ns, uint64_t launches);
void vgpu_bucket_correct(struct vgpu_process *process, int device, uint32_t core, int64_t ns, uint64_t moved);

#endif
