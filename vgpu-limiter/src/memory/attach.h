// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_ATTACH_H
#define VGPU_ATTACH_H

#include "runtime/process.h"

// Attaches the process: reads the limits, joins the counters, finds the devices.
// Returns NULL if that isn't possible, with the code for the caller in *why.
struct vgpu_process *vgpu_attach(cu_result *why);

// Reads and checks the limits before the driver is started. Returns CU_OK or the
// code for the caller.
cu_result vgpu_attach_begin(void);

// The attached process, or NULL. The first call on every path.
static inline struct vgpu_process *vgpu_process(cu_result *why) {
    struct vgpu_process *process =
        atomic_load_explicit(&vgpu_process_page, memory_order_acquire);
    if (vgpu_likely(process != NULL &&
                    atomic_load_explicit(&process->attached, memory_order_acquire)))
        return process;
    return vgpu_attach(why);
}

// Declares the attached process in a hook, which returns why where there is none.
#define VGPU_PROCESS(process)                                    \
    cu_result process##_why;                                     \
    struct vgpu_process *process = vgpu_process(&process##_why); \
    if (process == NULL)                                         \
        return process##_why

#endif
