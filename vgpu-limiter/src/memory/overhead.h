// SPDX-License-Identifier: Apache-2.0
//
// What the driver takes of a device for contexts and for modules.

#ifndef VGPU_OVERHEAD_H
#define VGPU_OVERHEAD_H

#include "memory/memory.h"

// Charges what a context on this device is expected to take, as vgpu_begin_on. A
// device that doesn't exist is the driver's to refuse: then here.device is -1.
cu_result vgpu_context_begin(struct vgpu_call *call, cu_device device);

// Corrects the charge by what the context has taken and remembers it with its
// owner. False as vgpu_commit: then the caller destroys what was created.
bool vgpu_context_commit(struct vgpu_call *call, void *context);

// What the process held on the device beyond its charge before a module was loaded.
struct vgpu_beside {
    bool mixed;   // with managed or imported memory in it
    bool unknown; // it is mixed, and the driver doesn't tell
    int64_t bytes;
};

// The two halves of measuring what a module takes; 0 where the driver doesn't tell.
// The second one, and the charge that follows, under modules.lock: two modules that were
// loaded at the same time are measured together, and counted once.
struct vgpu_beside vgpu_module_begin(const struct vgpu_call *call);
uint64_t vgpu_module_bytes(const struct vgpu_call *call, struct vgpu_beside before);

#endif
