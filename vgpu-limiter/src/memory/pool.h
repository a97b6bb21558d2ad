// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_POOL_H
#define VGPU_POOL_H

#include "memory/audit.h"

// Finds a pool, or adds it with this device. NULL if there are too many. Under
// pools.lock, as the next.
struct vgpu_pool *vgpu_pool_find(struct vgpu_process *process, cu_pool handle, int device);

// Takes `mine` out of what is pending and makes the charge what the pool has
// reserved. Returns false if it has grown by more than was charged for and the
// rest doesn't fit.
bool vgpu_pool_settle(struct vgpu_process *process, struct vgpu_pool *pool, uint64_t mine);

// Reports whether a call is under way that a pool may have grown for by more than is charged.
bool vgpu_pools_grow(struct vgpu_process *process, int device);

// Makes the pools of one device give back what nobody uses. Not under pools.lock or
// graphs.lock, which is taken before the former. The second is for a graph's launch,
// under graphs.lock: what graphs keep is there for it anyway.
void vgpu_pools_trim(struct vgpu_process *process, int device);
void vgpu_pools_trim_for_graph(struct vgpu_process *process, int device);

// Asks the driver what the process's pools have reserved and corrects their
// charges.
void vgpu_refresh_pools(struct vgpu_process *process);

#endif
