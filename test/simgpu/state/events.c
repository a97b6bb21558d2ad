// SPDX-License-Identifier: Apache-2.0
//
// events.c: the ring of driver events (Xid, ECC, …) and waiting for the next.
//
// Invariants:
// - event_seq counts events ever written; event n lies in slot n % SIM_MAX_EVENTS
//   and is complete before event_seq passes n.
// - Waiting is a futex on event_seq: no polling, and it works between processes
//   of any namespace because the word lies in a shared file mapping.
#define _GNU_SOURCE
#include "state.h"

#include <linux/futex.h>
#include <limits.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

void sim_event(struct sim_state *s, struct sim_event e) {
    sim_lock(s);
    uint32_t seq = atomic_load(&s->event_seq);
    s->events[seq % SIM_MAX_EVENTS] = e;
    atomic_store(&s->event_seq, seq + 1);
    sim_unlock(s);
    futex(&s->event_seq, FUTEX_WAKE, INT_MAX, NULL);
}

// sim_event_wait returns true once event_seq is not seen, false at the deadline
// (CLOCK_MONOTONIC; UINT64_MAX: none).
bool sim_event_wait(struct sim_state *s, uint32_t seen, uint64_t deadline_ns) {
    while (atomic_load(&s->event_seq) == seen) {
        struct timespec left, *timeout = NULL;
        if (deadline_ns != UINT64_MAX) {
            uint64_t now = sim_now();
            if (now >= deadline_ns) return false;
            left.tv_sec = (time_t)((deadline_ns - now) / 1000000000ull);
            left.tv_nsec = (long)((deadline_ns - now) % 1000000000ull);
            timeout = &left;
        }
        futex(&s->event_seq, FUTEX_WAIT, seen, timeout);
    }
    return true;
}
