// SPDX-License-Identifier: Apache-2.0
//
// stream.c: streams and host functions.
//
// Invariants:
// - All streams of a process on one device share one queue, so that any
//   dependency between them on that device holds by itself. Dependencies
//   between devices are not modelled.
// - Host functions run in one thread of ours, in order, each after the work
//   before it; a stream is not idle while one of its functions is outstanding.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>

static pthread_mutex_t links = PTHREAD_MUTEX_INITIALIZER;
static unsigned long long next_id = 16;

void stream_link(CUcontext ctx, CUstream s) {
    pthread_mutex_lock(&links);
    s->next = ctx->streams;
    ctx->streams = s;
    pthread_mutex_unlock(&links);
}

// stream_position: the legacy stream comes after all streams that are not
// non-blocking; in one queue that is everything queued so far.
uint64_t stream_position(CUstream s) {
    return s == &s->ctx->legacy ? work_queued(s->ctx->dev) : atomic_load(&s->last);
}

CUresult stream_add(CUstream s, uint64_t duration_ns) {
    return work_add(s->ctx->dev, duration_ns, &s->last);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    CUcontext ctx;
    NEED(stream && !(flags & ~(unsigned)CU_STREAM_NON_BLOCKING));
    CHECK(need_context(&ctx));
    CUstream s = calloc(1, sizeof *s);
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    s->ctx = ctx;
    s->flags = flags;
    s->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    pthread_mutex_lock(&links);
    s->id = next_id++;
    pthread_mutex_unlock(&links);
    stream_link(ctx, s);
    *stream = s;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    INITIALIZED;
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    CHECK(stream_wait(stream));
    capture_gone(stream);
    pthread_mutex_lock(&links);
    CUstream *p = &stream->ctx->streams;
    while (*p && *p != stream) p = &(*p)->next;
    if (*p) *p = stream->next;
    pthread_mutex_unlock(&links);
    free(stream);
    return CUDA_SUCCESS;
}

struct call {
    CUstream stream;
    uint64_t position;
    CUhostFn fn;
    CUstreamCallback callback;
    void *data;
    struct call *next;
};

static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct call *first, **last = &first;
static bool running;

static void *run_calls(void *arg) {
    pthread_mutex_lock(&calls);
    for (;;) {
        while (!first) pthread_cond_wait(&changed, &calls);
        struct call *c = first;
        pthread_mutex_unlock(&calls);
        work_wait(c->stream->ctx->dev, c->position);
        if (c->fn)
            c->fn(c->data);
        else
            c->callback(c->stream, CUDA_SUCCESS, c->data);
        pthread_mutex_lock(&calls);
        first = c->next;
        if (!first) last = &first;
        atomic_fetch_sub(&c->stream->calls, 1);
        pthread_cond_broadcast(&changed);
        free(c);
    }
    return arg;
}

static CUresult call_later(CUstream h, struct call model) {
    pthread_t thread;
    CUstream s;
    CHECK(context_stream(h, &s));
    if (s->capture) return graph_capture(s->capture, CU_GRAPH_NODE_TYPE_HOST, 0);
    struct call *c = malloc(sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    *c = model;
    c->stream = s;
    c->position = stream_position(s);
    c->next = NULL;
    pthread_mutex_lock(&calls);
    if (!running) running = pthread_create(&thread, NULL, run_calls, NULL) == 0;
    bool ok = running;
    if (ok) {
        *last = c;
        last = &c->next;
        atomic_fetch_add(&s->calls, 1);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&calls);
    if (ok) return CUDA_SUCCESS;
    free(c);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data) {
    NEED(fn);
    return call_later(stream, (struct call){.fn = fn, .data = data});
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data,
                             unsigned int flags) {
    NEED(callback && !flags);
    return call_later(stream, (struct call){.callback = callback, .data = data});
}

CUresult stream_wait(CUstream s) {
    CHECK(work_wait(s->ctx->dev, stream_position(s)));
    if (!atomic_load(&s->calls)) return CUDA_SUCCESS;
    pthread_mutex_lock(&calls);
    while (atomic_load(&s->calls)) pthread_cond_wait(&changed, &calls);
    pthread_mutex_unlock(&calls);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
    CUstream s;
    CHECK(context_stream(stream, &s));
    if (s->capture) {
        capture_spoil(s);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return stream_wait(s);
}

CUresult cuStreamQuery(CUstream stream) {
    CUstream s;
    CHECK(context_stream(stream, &s));
    if (s->capture) {
        capture_spoil(s);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    CHECK(lost_or(s->ctx->dev, CUDA_SUCCESS));
    bool idle = work_done(s->ctx->dev, stream_position(s)) && !atomic_load(&s->calls);
    return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

PTSZ(cuLaunchHostFunc);
PTSZ(cuStreamAddCallback);
PTSZ(cuStreamSynchronize);
PTSZ(cuStreamQuery);
