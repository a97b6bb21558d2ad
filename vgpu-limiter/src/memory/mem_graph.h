// SPDX-License-Identifier: Apache-2.0

#ifndef VGPU_MEM_GRAPH_H
#define VGPU_MEM_GRAPH_H

#include "runtime/process.h"

// Calls cuGraphLaunch or cuGraphUpload, whichever form, and charges the memory
// that the graph allocates.
cu_result vgpu_graph_run_charged(struct vgpu_process *process, enum vgpu_hook hook, cu_exec exec,
                                 cu_stream stream);

// The same where no graph of the process may allocate: a test and a jump.
static inline cu_result vgpu_graph_run(enum vgpu_hook hook, cu_exec exec, cu_stream stream) {
    struct vgpu_process *process =
        atomic_load_explicit(&vgpu_process_page, memory_order_acquire);
    if (vgpu_unlikely(process != NULL &&
                      atomic_load_explicit(&process->graphs.allocate, memory_order_relaxed)))
        return vgpu_graph_run_charged(process, hook, exec, stream);
    cu_result (*real)(cu_exec, cu_stream) = vgpu_real(hook);
    return real(exec, stream);
}

#endif
