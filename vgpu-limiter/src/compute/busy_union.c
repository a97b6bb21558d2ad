// SPDX-License-Identifier: Apache-2.0
//
// Invariants:
//   1. Of an interval, no more is ever handed out than it is long: time in which
//      several worked counts once where it fills intervals, and within an interval
//      that it doesn't fill, at most as if they had worked one after the other.
//      Of what is spread over intervals each has its part, and what finds no room there
//      goes where there is some, so that several streams' is counted once only where it
//      can't have been one after the other.
//   2. One atomic operation per interval; no process waits for another.
//   3. What lies further back than the calendar reaches counts as not entered, and isn't
//      entered: that would take the place of what has been since.

#include "compute/busy_union.h"

// Enters ns (at most a cell's length) of the interval with this number.
static uint64_t enter(struct vgpu_calendar *calendar, uint64_t now, uint64_t number, uint64_t ns) {
    if (number + VGPU_CELLS <= now / VGPU_CELL_NS)
        return ns;
    uint32_t *cell = &calendar->cell[number % VGPU_CELLS];
    uint32_t turn = (uint32_t)(number / VGPU_CELLS & 0xffff) << 16;
    uint32_t seen = __atomic_load_n(cell, __ATOMIC_RELAXED), had, has;
    do {
        had = (seen & 0xffff0000) == turn ? seen & 0xffff : 0;
        if (had > VGPU_CELL_NS / 2) // somebody has written it
            had = VGPU_CELL_NS / 2;
        has = had + (uint32_t)(ns / 2);
        if (has > VGPU_CELL_NS / 2)
            has = VGPU_CELL_NS / 2;
    } while (!__atomic_compare_exchange_n(cell, &seen, turn | has, true, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    return (has - had) * UINT64_C(2);
}

#define SPREAD_NS UINT64_C(16000000) // over no more, or what there is: in more, little is at the same time

uint64_t vgpu_busy_union_spread(struct vgpu_calendar *calendar, uint64_t now, uint64_t start, uint64_t end, uint64_t ns) {
    uint64_t most = ns > SPREAD_NS ? ns : SPREAD_NS, sum = 0, entered = 0;
    if (end - start > most)
        start = end - most;
    if (ns == end - start)
        return vgpu_busy_union_enter(calendar, now, start, end);
    double part = (double)ns / (double)(end - start);
    for (uint64_t at = start; at < end;) {
        uint64_t number = at / VGPU_CELL_NS, next = (number + 1) * VGPU_CELL_NS;
        at = next < end ? next : end;
        uint64_t until = at < end ? (uint64_t)((double)(at - start) * part) & ~UINT64_C(1) : ns;
        sum += enter(calendar, now, number, until - entered);
        entered = until;
    }
    for (uint64_t at = end; at > start && sum + 1 < ns;) { // launches that are waited for together are at the end
        uint64_t number = (at - 1) / VGPU_CELL_NS, begin = number * VGPU_CELL_NS;
        begin = begin > start ? begin : start;
        sum += enter(calendar, now, number, at - begin < ns - sum ? at - begin : ns - sum);
        at = begin;
    }
    return sum;
}

uint64_t vgpu_busy_union_enter(struct vgpu_calendar *calendar, uint64_t now, uint64_t start, uint64_t end) {
    uint64_t reach = (VGPU_CELLS - 1) * VGPU_CELL_NS, sum = 0;
    if (end - start > reach) {
        sum = end - start - reach;
        start = end - reach;
    }
    while (start < end) {
        uint64_t number = start / VGPU_CELL_NS, next = (number + 1) * VGPU_CELL_NS;
        if (next > end)
            next = end;
        sum += enter(calendar, now, number, next - start);
        start = next;
    }
    return sum;
}
