// SPDX-License-Identifier: Apache-2.0
//
// The container's device time on one device, shared by its processes.

#ifndef VGPU_BUCKET_H
#define VGPU_BUCKET_H

#include "pace.h"

uint64_t vgpu_now(void);

// The moment from which a launch that takes about `ns` of device time may start:
// not after `now` if that is right now. `ahead`: what may be launched after it
// without asking again.
uint64_t vgpu_bucket_due(const struct vgpu_process *process, int device,
                         const struct vgpu_turn *turn, uint64_t now, uint64_t ns, uint64_t ahead);

// Sleeps until `until`, though not for long at a time: what was said of it may
// change. Returns the time then.
uint64_t vgpu_bucket_sleep(struct vgpu_process *process, int device, uint64_t now, uint64_t until);

// Charges launches with device time as it is expected; then the difference to
// what was measured, which may be negative.
void vgpu_bucket_charge(struct vgpu_process *process, int device, const struct vgpu_turn *turn,
                        uint64_t now, uint64_t ns, uint64_t launches);
void vgpu_bucket_correct(struct vgpu_process *process, int device, const struct vgpu_turn *turn,
                         int64_t ns);

#endif
