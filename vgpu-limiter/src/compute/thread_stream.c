// SPDX-License-Identifier: Apache-2.0
//
// Thread streams.
//
// Invariants:
//   1. A stream state lives until its stream or context is destroyed; both bump the
//      epoch first, and no thread stream of an older epoch launches. What it has launched
//      is added to its stream state if that is still in the table: launches.stream_lock is
//      held from that lookup until it is added, and while states are taken out of the table.
//   2. A thread stream is its thread's own. What it holds uncharged is at most one allowance,
//      and is charged before it serves another stream, before its own thread destroys
//      a stream, and when that ends.
//   3. All thread streams of a thread share its places for classes: each has the bits of
//      its own.

#include "compute/thread_stream.h"

#include "compute/timing.h"
#include "compute/token_bucket.h"

#include <stdlib.h>
#include <sys/mman.h>

#define FIRST_ALLOWANCE 16000u      // ns
#define SETTLE_TRIES 1000
#define SETTLE_PAUSE_NS 20000

static const struct vgpu_tls nobodys;
#define NOBODYS ((struct vgpu_tls *)(uintptr_t)&nobodys)
_Thread_local struct vgpu_tls *vgpu_tls __attribute__((tls_model("initial-exec"))) = NOBODYS;

static void drop(struct vgpu_thread_stream *thread, unsigned place) {
    thread->classes[place / 64] &= ~(UINT64_C(1) << place % 64);
    vgpu_tls->classes[place].name = 0;
}

// The place for a class that has none: a free one nearby, or its first.
static unsigned make_room(uint64_t name) {
    unsigned first = (unsigned)(vgpu_launch_class_place(name) - vgpu_tls->classes), way = 0;
    while (way < VGPU_LAUNCH_CLASS_WAYS && vgpu_tls->classes[first ^ way].name != 0)
        way++;
    if (way < VGPU_LAUNCH_CLASS_WAYS)
        return first ^ way;
    for (int i = 0; i < VGPU_THREAD_STREAMS; i++)
        if ((vgpu_tls->streams[i].classes[first / 64] >> first % 64 & 1) != 0)
            drop(&vgpu_tls->streams[i], first);
    return first;
}

static uint64_t parts_of(const struct vgpu_price *price) {
    if (price->worst > VGPU_BATCH_NS)
        return UINT64_MAX;
    uint64_t takes = price->worst < VGPU_SMALLEST_STEP ? VGPU_SMALLEST_STEP : price->worst;
    return vgpu_parts(takes, price->worst - price->ns, price->ns, 1);
}

bool vgpu_thread_stream_learn(struct vgpu_thread_stream *thread, uint64_t key) {
    struct vgpu_price price;
    uint64_t name = vgpu_launch_class_name(thread, key);
    struct vgpu_launch_class *class = vgpu_launch_class_of(name);
    if (!vgpu_cost_get(&thread->state->ctx_state->costs, key, &price)) {
        if (class != NULL)
            drop(thread, (unsigned)(class - vgpu_tls->classes));
        return false;
    }
    unsigned place = class != NULL ? (unsigned)(class - vgpu_tls->classes) : make_room(name);
    thread->classes[place / 64] |= UINT64_C(1) << place % 64;
    vgpu_tls->classes[place] = (struct vgpu_launch_class){.name = name, .price = parts_of(&price)};
    return true;
}

void vgpu_thread_stream_learn_all(struct vgpu_thread_stream *thread) {
    const struct vgpu_costs *costs = &thread->state->ctx_state->costs;
    uint64_t learned = costs->learned;
    if (learned - thread->learned <= VGPU_COSTS_LATELY) {
        for (uint64_t i = thread->learned; i != learned; i++)
            if (vgpu_launch_class_of(vgpu_launch_class_name(thread, costs->lately[i % VGPU_COSTS_LATELY])) != NULL)
                vgpu_thread_stream_learn(thread, costs->lately[i % VGPU_COSTS_LATELY]);
    } else {
        for (unsigned place = 0; place < VGPU_LAUNCH_CLASSES; place++)
            if ((thread->classes[place / 64] >> place % 64 & 1) != 0)
                vgpu_thread_stream_learn(thread, vgpu_launch_class_name(thread, vgpu_tls->classes[place].name));
    }
    thread->learned = learned;
}

void vgpu_thread_stream_allow(struct vgpu_thread_stream *thread, uint64_t key, uint64_t ns) {
    thread->left = vgpu_parts(ns, 0, 0, 0) | VGPU_SPENT;
    thread->first = vgpu_launch_class_name(thread, key);
    thread->names = 0;
}

// What the thread stream has launched by its allowance.
static struct vgpu_price uncharged(const struct vgpu_thread_stream *thread) {
    uint64_t part = (1 << VGPU_TIME_BITS) - 1, spent = thread->left != 0 ? VGPU_SPENT - (thread->left & VGPU_SPENT) : 0;
    uint64_t count = spent & ((1 << VGPU_COUNT_BITS) - 1), ns = spent >> VGPU_COUNT_BITS & part;
    return (struct vgpu_price){ns, ns + (spent >> (VGPU_COUNT_BITS + VGPU_TIME_BITS)), count};
}

void vgpu_thread_stream_settle(struct vgpu_thread_stream *thread, const struct vgpu_turn *turn, uint64_t now) {
    struct vgpu_price price = uncharged(thread);
    uint64_t count = price.times;
    vgpu_store(&thread->state->process->region.counters->header.device[thread->state->device].last_launch, now);
    if (count != 0)
        vgpu_timing_add(thread->state,
                        thread->names == count * thread->first ? vgpu_launch_class_name(thread, thread->first) : 0, count,
                        price, turn, now);
    thread->left = 0;
}

// Where the stream state has gone, or its locks can't be had.
static void charge(struct vgpu_process *process, struct vgpu_thread_stream *thread, const struct vgpu_turn *turn, uint64_t now) {
    struct vgpu_price price = uncharged(thread);
    vgpu_bucket_charge(process, thread->device, turn->core, now, price.ns, price.times);
    thread->left = 0;
}

// Charges what a thread stream has launched that serves its stream no more, by invariant 1.
// It doesn't wait for the locks for ever: this may be the process's end, within a signal's
// handler even, and the owner of the context state's lock waits for the device, or for a
// core. Then an open batch may measure what is charged here once more.
static void settle(struct vgpu_thread_stream *thread) {
    struct vgpu_process *process = atomic_load(&vgpu_process_page);
    struct vgpu_entry entry;
    if (thread->left == 0 || process == NULL || !atomic_load(&process->attached) ||
        (int)(thread->epoch - process->first_epoch) < 0) // in a child of fork it is its parent's
        return;
    int cancel = vgpu_cancel_hold();
    uint64_t now = vgpu_now();
    struct vgpu_turn turn = vgpu_turn(process, thread->device, now);
    for (int i = 0; i < SETTLE_TRIES && thread->left != 0; i++) {
        if (i > 0)
            now = vgpu_pause(now, SETTLE_PAUSE_NS);
        if (!vgpu_lock_try(&process->launches.stream_lock))
            continue;
        if (!vgpu_table_get(&process->table, vgpu_stream_key(thread->stream, thread->ctx), &entry) ||
            entry.value != (uintptr_t)thread->state) {
            charge(process, thread, &turn, now);
        } else if (vgpu_lock_try(&thread->state->ctx_state->lock)) {
            vgpu_thread_stream_settle(thread, &turn, now);
            vgpu_lock_free(&thread->state->ctx_state->lock);
        }
        vgpu_lock_free(&process->launches.stream_lock);
    }
    if (thread->left != 0)
        charge(process, thread, &turn, now);
    vgpu_cancel_free(cancel);
}

// Of a thread stream that is about to serve another stream, or never again.
static void vacate(struct vgpu_thread_stream *thread) {
    settle(thread);
    for (unsigned place = 0; place < VGPU_LAUNCH_CLASSES; place++)
        if ((thread->classes[place / 64] >> place % 64 & 1) != 0)
            drop(thread, place);
    *thread = (struct vgpu_thread_stream){0};
}

void vgpu_thread_settle(void) {
    for (int i = 0; i < VGPU_THREAD_STREAMS && vgpu_tls != NOBODYS; i++)
        vacate(&vgpu_tls->streams[i]);
}

// The C library's, of threads, not of the process: C has no word for it. C++ programs with
// thread_local objects call the same.
int __cxa_thread_atexit_impl(void (*end)(void *), void *object, void *of);

// Whatever the thread launches after this, from what else ends with it, gets a new one.
static void end_tls(void *tls) {
    vgpu_thread_settle();
    vgpu_tls = NOBODYS;
    munmap(tls, sizeof *vgpu_tls);
}

// The thread gets a vgpu_tls of its own. It isn't malloc's: a program may have one of its own
// that gives no aligned memory.
static bool begin_tls(void) {
    if (vgpu_tls != NOBODYS)
        return true;
    void *tls = mmap(NULL, sizeof *vgpu_tls, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (tls == MAP_FAILED)
        return false;
    if (__cxa_thread_atexit_impl(end_tls, tls, NOBODYS) != 0) {
        munmap(tls, sizeof *vgpu_tls);
        return false;
    }
    vgpu_tls = tls;
    return true;
}

cu_result vgpu_thread_stream_open(struct vgpu_process *process, cu_stream stream) {
    struct vgpu_here here;
    cu_ctx own = NULL, popped;
    unsigned epoch = vgpu_epoch();
    if (!begin_tls())
        return CU_OUT_OF_MEMORY;
    struct vgpu_thread_stream *thread = vgpu_thread_stream_of(stream);
    vacate(thread);
    if (stream > VGPU_PER_THREAD && VGPU_REAL(cuStreamGetCtx)(stream, &own) != CU_OK)
        own = NULL;
    if (own != NULL)
        VGPU_REAL(cuCtxPushCurrent_v2)(own);
    cu_result result = vgpu_here(process, &here);
    if (own != NULL)
        VGPU_REAL(cuCtxPopCurrent_v2)(&popped);
    if (result != CU_OK)
        return result;
    struct vgpu_stream_state *state = NULL;
    bool measures = process->pace != NULL || vgpu_quota(process, here.device) != 0;
    if (measures && (state = vgpu_stream_find(process, stream, &here)) == NULL)
        return CU_OUT_OF_MEMORY;
    *thread = (struct vgpu_thread_stream){.stream = stream, .ctx = here.ctx, .epoch = epoch, .state = state,
                               .size = FIRST_ALLOWANCE, .freed = vgpu_quota(process, here.device) == 0,
                               .device = (uint8_t)here.device};
    return CU_OK;
}
