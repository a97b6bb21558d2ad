// SPDX-License-Identifier: Apache-2.0
//
// Stream captures and the end of streams, as far as measuring launches needs to
// know of them.

#include "compute.h"

// Noted before the driver begins, and for good: from then on every limited
// launch asks whether it is captured.
static void note_capture(void) {
    struct vgpu_process *process = atomic_load(&vgpu_process_page);
    if (process != NULL)
        atomic_store(&process->captures, true);
}

cu_result cuStreamBeginCapture(cu_stream stream) {
    note_capture();
    return VGPU_REAL(cuStreamBeginCapture)(stream);
}

cu_result cuStreamBeginCapture_ptsz(cu_stream stream) {
    note_capture();
    return VGPU_REAL(cuStreamBeginCapture_ptsz)(stream);
}

cu_result cuStreamBeginCapture_v2(cu_stream stream, int mode) {
    note_capture();
    return VGPU_REAL(cuStreamBeginCapture_v2)(stream, mode);
}

cu_result cuStreamBeginCapture_v2_ptsz(cu_stream stream, int mode) {
    note_capture();
    return VGPU_REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode);
}

cu_result cuStreamBeginCaptureToGraph(cu_stream stream, cu_graph graph, const cu_node *nodes,
                                      const void *edges, size_t count, int mode) {
    note_capture();
    return VGPU_REAL(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, count, mode);
}

cu_result cuStreamBeginCaptureToGraph_ptsz(cu_stream stream, cu_graph graph, const cu_node *nodes,
                                           const void *edges, size_t count, int mode) {
    note_capture();
    return VGPU_REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, nodes, edges, count, mode);
}

static void forget(cu_stream stream) {
    struct vgpu_process *process = atomic_load(&vgpu_process_page);
    if (process != NULL && process->has_quota)
        vgpu_forget_stream(process, stream);
}

cu_result cuStreamDestroy(cu_stream stream) {
    forget(stream);
    return VGPU_REAL(cuStreamDestroy)(stream);
}

cu_result cuStreamDestroy_v2(cu_stream stream) {
    forget(stream);
    return VGPU_REAL(cuStreamDestroy_v2)(stream);
}
