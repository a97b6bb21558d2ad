// SPDX-License-Identifier: Apache-2.0
//
// capture.c: recording a stream's work into a graph.
//
// Invariant: a capture ends on the stream that began it and takes along every
// stream that joined it by waiting for one of its events. While one is under way that
// began in the global mode, a thread in that mode may not ask about events, and spoils
// the capture if it does; so does who waits for a stream that is capturing, or for its
// context, in whatever mode.
#define _GNU_SOURCE
#include "internal.h"

static _Atomic unsigned strict;  // captures in the global mode
static _Atomic unsigned spoilt;  // changes when those in the global mode are
static _Thread_local CUstreamCaptureMode mine;

bool capture_forbids(void) {
    bool forbids = atomic_load(&strict) && mine == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (forbids) atomic_fetch_add(&spoilt, 1);
    return forbids;
}

void capture_spoil(CUstream s) {
    for (CUstream other = s->ctx->streams; other; other = other->next)
        other->spoilt |= other->capture == s->capture;
}

static bool is_spoilt(CUstream s) {
    return s->spoilt || (s->strict && s->began_at != atomic_load(&spoilt));
}

static CUresult begin(CUstream stream, CUgraph into, CUstreamCaptureMode mode) {
    CUstream s;
    CHECK(context_stream(stream, &s));
    if (s == &s->ctx->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (!into) CHECK(graph_new(&into));
    s->capture = into;
    s->origin = true;
    s->strict = mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    s->spoilt = false;
    s->began_at = atomic_load(&spoilt);
    atomic_fetch_add(&strict, s->strict);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    NEED((unsigned)mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    return begin(stream, NULL, mode);
}

CUresult cuStreamBeginCapture(CUstream stream) {
    return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                     const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *edges, size_t n,
                                     CUstreamCaptureMode mode) {
    (void)dependencies, (void)edges, (void)n;
    NEED(graph && (unsigned)mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    return begin(stream, graph, mode);
}

void capture_gone(CUstream s) {
    atomic_fetch_sub(&strict, s->strict);
    s->strict = false;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    CUstream s;
    NEED(graph);
    CHECK(context_stream(stream, &s));
    if (!s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (!s->origin) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    *graph = s->capture;
    for (CUstream other = s->ctx->streams; other; other = other->next)
        if (other->capture == *graph) other->capture = NULL;
    s->origin = false;
    bool good = !is_spoilt(s);
    capture_gone(s);
    if (good) return CUDA_SUCCESS;
    *graph = NULL;
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    CUstream s;
    NEED(status);
    CHECK(context_stream(stream, &s));
    *status = !s->capture     ? CU_STREAM_CAPTURE_STATUS_NONE
              : is_spoilt(s) ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies,
                                   const CUgraphEdgeData **edges, size_t *n) {
    CUstream s;
    CHECK(cuStreamIsCapturing(stream, status));
    CHECK(context_stream(stream, &s));
    if (!s->capture) return CUDA_SUCCESS;
    if (id) *id = (cuuint64_t)(uintptr_t)s->capture;
    if (graph) *graph = s->capture;
    if (dependencies) *dependencies = NULL;
    if (edges) *edges = NULL;
    if (n) *n = 0;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies, size_t *n) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, NULL, n);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    NEED(mode && (unsigned)*mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    CUstreamCaptureMode before = mine;
    mine = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

PTSZ(cuStreamBeginCapture);
PTSZ(cuStreamBeginCapture_v2);
PTSZ(cuStreamBeginCaptureToGraph);
PTSZ(cuStreamEndCapture);
PTSZ(cuStreamIsCapturing);
PTSZ(cuStreamGetCaptureInfo);
PTSZ(cuStreamGetCaptureInfo_v2);
PTSZ(cuStreamGetCaptureInfo_v3);
