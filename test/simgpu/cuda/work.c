// SPDX-License-Identifier: Apache-2.0
//
// work.c: this process's queue of work on each device.
//
// Invariants:
// - A position in the queue is the work queued up to it, in nanoseconds of
//   device time; work is done in queue order whatever its stream.
// - While the queue surely still holds work, adding to it is one atomic add and
//   a look at the clock. It surely does until drained_ns: nothing makes a queue
//   drain faster than one nanosecond per nanosecond.
// - At most PENDING additions are outstanding; one more waits, as the real
//   driver's launch does when its ring is full.
// - Waiting sleeps until the moment predicted from what all clients have
//   queued, and looks again.
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <sys/prctl.h>
#include <time.h>

#define PENDING 1024
#define RECHECK_NS 50000000ull  // a client that dies makes others' work end sooner

struct queue {
    pthread_mutex_t mutex;
    uint64_t drained_ns;  // the queue is not empty before this moment
    uint64_t additions;
    uint64_t ring[PENDING];  // positions of the newest additions
};

static struct queue queues[SIM_MAX_DEVICES];

__attribute__((constructor)) static void make_mutexes(void) {
    for (unsigned d = 0; d < SIM_MAX_DEVICES; d++) pthread_mutex_init(&queues[d].mutex, NULL);
}

uint64_t work_queued(unsigned dev) { return atomic_load(&me->work[dev].queued_ns); }

// add_serial adds on a device where the order among processes matters.
static uint64_t add_serial(unsigned dev, uint64_t duration, uint64_t now) {
    struct sim_work *w = &me->work[dev];
    sim_lock_device(cu, dev);
    sim_advance(cu, dev, now);
    uint64_t position = atomic_fetch_add(&w->queued_ns, duration) + duration;
    bool room = sim_serial_add(cu, me, dev, position);
    if (!room) atomic_fetch_sub(&w->queued_ns, duration);
    sim_unlock_device(cu, dev);
    return room ? position : 0;
}

// add_idle adds when the queue may have run dry: what was done before must be
// worked out first, or time that has passed would count for the new work.
static uint64_t add_idle(unsigned dev, uint64_t duration, uint64_t now) {
    struct sim_work *w = &me->work[dev];
    sim_lock_device(cu, dev);
    sim_advance(cu, dev, now);
    uint64_t position = atomic_fetch_add(&w->queued_ns, duration) + duration;
    queues[dev].drained_ns = now + position - atomic_load(&w->done_ns);
    sim_unlock_device(cu, dev);
    return position;
}

// work_add queues work and tells its position; 0 nanoseconds of it is none.
CUresult work_add(unsigned dev, uint64_t duration, _Atomic uint64_t *position) {
    struct queue *q = &queues[dev];
    struct sim_work *w = &me->work[dev];
    CHECK(lost_or(dev, CUDA_SUCCESS));
    if (!duration) {
        atomic_store_explicit(position, work_queued(dev), memory_order_relaxed);
        return CUDA_SUCCESS;
    }
    duration += duration * atomic_load_explicit(&cu->devices[dev].stretch, memory_order_relaxed) / 100;
    pthread_mutex_lock(&q->mutex);
    uint64_t oldest = q->ring[q->additions % PENDING], at;
    if (q->additions >= PENDING && oldest > atomic_load(&w->done_ns)) {
        pthread_mutex_unlock(&q->mutex);
        CHECK(work_wait(dev, oldest));
        pthread_mutex_lock(&q->mutex);
    }
    uint64_t now = sim_now();
    if (cu->devices[dev].serial) {
        at = add_serial(dev, duration, now);
    } else if (now < q->drained_ns) {
        at = atomic_fetch_add(&w->queued_ns, duration) + duration;
        q->drained_ns += duration;
    } else {
        at = add_idle(dev, duration, now);
    }
    if (at) q->ring[q->additions++ % PENDING] = at;
    pthread_mutex_unlock(&q->mutex);
    if (!at) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    atomic_store_explicit(position, at, memory_order_relaxed);
    return CUDA_SUCCESS;
}

static bool done(unsigned dev, uint64_t position) {
    return atomic_load(&me->work[dev].done_ns) >= position;
}

bool work_done(unsigned dev, uint64_t position) {
    if (done(dev, position)) return true;
    sim_lock_device(cu, dev);
    sim_advance(cu, dev, sim_now());
    sim_unlock_device(cu, dev);
    return done(dev, position);
}

// sleep_until keeps to the nanosecond what the scheduler would round to its
// 50 µs slack, for this thread and this sleep only.
static void sleep_until(uint64_t moment) {
    struct timespec t = {.tv_sec = (time_t)(moment / 1000000000ull),
                         .tv_nsec = (long)(moment % 1000000000ull)};
    int slack = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
    if (slack > 0) prctl(PR_SET_TIMERSLACK, slack);
}

CUresult work_wait(unsigned dev, uint64_t position) {
    uint64_t slept = 0;
    while (!done(dev, position)) {
        CHECK(lost_or(dev, CUDA_SUCCESS));
        if (slept >= RECHECK_NS) {
            sim_lock(cu);
            sim_reap(cu);
            sim_unlock(cu);
            slept = 0;
        }
        uint64_t now = sim_now();
        sim_lock_device(cu, dev);
        sim_advance(cu, dev, now);
        uint64_t end = sim_predict(cu, me, dev, position, now);
        sim_unlock_device(cu, dev);
        if (end <= now) continue;
        if (end > now + RECHECK_NS) end = now + RECHECK_NS;
        slept += end - now;
        sleep_until(end);
    }
    return CUDA_SUCCESS;
}

// work_time returns the moment at which a position that is done was reached.
uint64_t work_time(unsigned dev, uint64_t position) {
    sim_lock_device(cu, dev);
    uint64_t at = sim_reached_at(cu, me, dev, position);
    sim_unlock_device(cu, dev);
    return at;
}
