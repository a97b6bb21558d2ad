// SPDX-License-Identifier: Apache-2.0
//
// Stream captures and the end of streams, as far as measuring launches needs to
// know of them.

#include "compute/destroyed_streams.h"

// How many captures are under way: while it isn't none, every limited launch asks
// whether it is captured. Too many is safe; one that ends unseen, with its
// stream, stays counted.
static void count_captures(int change) {
    struct vgpu_process *process = atomic_load(&vgpu_process_page);
    if (process != NULL)
        atomic_fetch_add(&process->launches.captures, change);
}

// Counted before the driver begins: its launches may come at once.
#define BEGIN_ONE(symbol, parameters, arguments)        \
    cu_result symbol parameters {                       \
        count_captures(1);                              \
        cu_result result = VGPU_REAL(symbol) arguments; \
        if (result != CU_OK)                            \
            count_captures(-1);                         \
        return result;                                  \
    }
#define BEGIN(symbol, parameters, arguments)  \
    BEGIN_ONE(symbol, parameters, arguments)  \
    BEGIN_ONE(symbol##_ptsz, parameters, arguments)

BEGIN(cuStreamBeginCapture, (cu_stream stream), (stream))
BEGIN(cuStreamBeginCapture_v2, (cu_stream stream, int mode), (stream, mode))
BEGIN(cuStreamBeginCaptureToGraph,
      (cu_stream stream, cu_graph graph, const cu_node *nodes, const void *edges, size_t count, int mode),
      (stream, graph, nodes, edges, count, mode))

// A capture that was spoilt ends with an error; where the driver can't be asked
// about captures, only success tells that one has ended. One at a time: of two threads that
// end the same one, one doesn't.
static cu_result end(bool per_thread, cu_stream stream, cu_graph *graph) {
    struct vgpu_process *process = atomic_load(&vgpu_process_page);
    if (process == NULL)
        return VGPU_REAL_OF(cuStreamEndCapture, per_thread)(stream, graph);
    vgpu_lock(&process->launches.end_lock);
    int before = CU_CAPTURE_NONE, after = CU_CAPTURE_NONE;
    bool known = VGPU_REAL_OF(cuStreamIsCapturing, per_thread)(stream, &before) == CU_OK;
    cu_result result = VGPU_REAL_OF(cuStreamEndCapture, per_thread)(stream, graph);
    bool ended = known && before != CU_CAPTURE_NONE &&
                 VGPU_REAL_OF(cuStreamIsCapturing, per_thread)(stream, &after) == CU_OK && after == CU_CAPTURE_NONE;
    if (ended || (!known && result == CU_OK))
        count_captures(-1);
    vgpu_unlock(&process->launches.end_lock);
    return result;
}

cu_result cuStreamEndCapture(cu_stream stream, cu_graph *graph) { return end(false, stream, graph); }
cu_result cuStreamEndCapture_ptsz(cu_stream stream, cu_graph *graph) { return end(true, stream, graph); }

static void forget(cu_stream stream) {
    struct vgpu_process *process = atomic_load(&vgpu_process_page);
    if (process != NULL && process->launches.measures)
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
