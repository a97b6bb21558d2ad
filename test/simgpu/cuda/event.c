// SPDX-License-Identifier: Apache-2.0
//
// event.c: events.
//
// Invariants:
// - An event is done when its stream's work at the time of recording is. Its
//   time is when that happened on the device, or when it was recorded if the
//   stream was idle: differences are device time, not call time.
// - An event recorded in a capture carries the capture to streams that wait.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>

struct CUevent_st {
    unsigned flags;
    bool recorded;
    unsigned dev;
    uint64_t position, recorded_ns, done_ns;
    CUgraph capture;
};

CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    CUcontext ctx;
    NEED(event && !(flags & ~7u));
    if (flags & CU_EVENT_INTERPROCESS) NEED(flags & CU_EVENT_DISABLE_TIMING);
    CHECK(need_context(&ctx));
    CUevent e = calloc(1, sizeof *e);
    if (!e) return CUDA_ERROR_OUT_OF_MEMORY;
    e->flags = flags;
    e->dev = ctx->dev;
    *event = e;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
    INITIALIZED;
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    free(event);
    return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
    CUstream s;
    NEED(!(flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL));
    CHECK(context_stream(stream, &s));
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    event->capture = s->capture;
    if (s->capture) return graph_capture(s->capture, CU_GRAPH_NODE_TYPE_EVENT_RECORD, 0);
    sim_takes(cu, SIM_EVENT_RECORD);
    event->dev = s->ctx->dev;
    event->position = stream_position(s);
    event->recorded_ns = sim_now();
    event->done_ns = 0;
    event->recorded = true;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    return cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_DEFAULT);
}

CUresult cuEventQuery(CUevent event) {
    INITIALIZED;
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    if (capture_forbids()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    sim_takes(cu, SIM_EVENT_QUERY);
    if (!event->recorded) return CUDA_SUCCESS;
    CHECK(lost_or(event->dev, CUDA_SUCCESS));
    return work_done(event->dev, event->position) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
    INITIALIZED;
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    return event->recorded ? work_wait(event->dev, event->position) : CUDA_SUCCESS;
}

static CUresult time_of(CUevent e, uint64_t *at) {
    if (!e || !e->recorded || (e->flags & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!e->done_ns) {
        CHECK(cuEventQuery(e));
        uint64_t reached = e->position ? work_time(e->dev, e->position) : 0;
        e->done_ns = reached > e->recorded_ns ? reached : e->recorded_ns;
    }
    *at = e->done_ns;
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end) {
    uint64_t a, b;
    NEED(ms);
    INITIALIZED;
    CHECK(time_of(start, &a));
    CHECK(time_of(end, &b));
    *ms = (float)((double)(int64_t)(b - a) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(ms, start, end);
}

// On one device the queue's order already is the dependency; what is left to do
// is to draw the waiting stream into a capture.
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    CUstream s;
    NEED(!(flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL));
    CHECK(context_stream(stream, &s));
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture && s->capture && event->capture != s->capture)
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    if (event->capture) {
        s->capture = event->capture;
        return CUDA_SUCCESS;
    }
    if (s->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (event->recorded && event->dev == s->ctx->dev && event->position > atomic_load(&s->last))
        atomic_store(&s->last, event->position);
    return CUDA_SUCCESS;
}

PTSZ(cuEventRecord);
PTSZ(cuEventRecordWithFlags);
PTSZ(cuStreamWaitEvent);
