// SPDX-License-Identifier: Apache-2.0
//
// The bucket: one word, paid_until, the moment at which all device time charged
// so far is paid off at the quota.
//
// Invariants:
//   1. The clock refills it: nobody has to. t nanoseconds of device time move
//      paid_until by t × 100 / quota.
//   2. Refills come once a period, in advance: launches may start while
//      paid_until lies before the end of the current period. So work comes in
//      bursts that keep the device busy from end to end and can be measured
//      exactly; containers side by side have periods that begin at different
//      moments (pace).
//   3. What a container didn't want is lost but for what pays for 9 ms of the device's
//      time: programs that work by themselves between their steps get their share. With
//      turns it is one period. What it had to wait for isn't lost, for up to a second:
//      turns come in order of paid_until, and launches that don't fit into one are made up
//      for in a later one.
//   4. A launch longer than what a period pays for starts once half of that is
//      paid off, so that long launches are rounded and not always late.
//   5. Side by side with others, launches start only in the container's turn, and
//      only if what was launched before leaves room for at least half of them in
//      it, if they take as long as they may: so what one turn launches is through when
//      the next one begins, but for half a launch. A launch longer than a turn starts in
//      its first half. The node side says when the next one begins, and while others' work
//      isn't through yet, as far as it knows, none has.
//   6. What others may want back at any moment is launched no more than 4 ms ahead, or
//      one launch; by an idle slice 0.5 ms. Nor does an idle slice launch what would run over its
//      turn by more than a quarter.
//   7. While a launch of the container has waited for more than a quarter of a period, no
//      other one that came later goes before it. A launch that stops waiting names the next.
//   8. What the node side finds to have been others' work is taken off again, once.
//   9. One atomic operation per word and charge; no process waits for another.

#include "compute/token_bucket.h"

#define LONGEST_SLEEP_NS UINT64_C(5000000)
#define LATE_SLEEP_NS UINT64_C(1000000) // behind its quota: its turn may come at any moment
#define SAVED_NS UINT64_C(9000000) // of the device's time: a second has 0.9 to 1.4 points more after a pause
#define BEHIND_PART 4 // of a period: who has waited for it goes first
#define BEHIND_NS UINT64_C(200000)
#define LATEST_NS UINT64_C(20000000) // how much longer is expected of what is late already
_Static_assert(VGPU_LONGEST_BEHIND_NS >= 2 * LONGEST_SLEEP_NS, "a live waiter has looked");

static struct vgpu_counters_device *counters(const struct vgpu_process *process, int device) {
    return &process->region.counters->header.device[device];
}

// When the period began in which `at` lies.
static uint64_t begin_of(const struct vgpu_turn *turn, uint64_t at) {
    return at - (at + turn->period - turn->phase) % turn->period;
}

// What is left of the turn that began at `begin`.
static uint64_t left(const struct vgpu_process *process, int device, const struct vgpu_turn *turn,
                     uint64_t begin, uint64_t now) {
    uint64_t until = vgpu_load(&counters(process, device)->working_until);
    until = until > now ? until : now;
    return until < begin + turn->part ? begin + turn->part - until : 0;
}

// Adds to what is paid, not below 0: what was charged with a burst is given back by the plain quota.
static void pay(const struct vgpu_process *process, int device, int64_t ns) {
    struct vgpu_counters_device *bucket = counters(process, device);
    uint64_t was = vgpu_load(&bucket->paid_until);
    while (!vgpu_cas(&bucket->paid_until, &was, ns < 0 && was < (uint64_t)-ns ? 0 : was + (uint64_t)ns))
        ;
}

// Takes off what the node side has found to be others' work.
static void take_back(const struct vgpu_process *process, int device, const struct vgpu_turn *turn) {
    struct vgpu_counters_device *bucket = counters(process, device);
    if (process->pace == NULL)
        return;
    uint64_t all = vgpu_load(&process->pace->device[device].returned_ns), taken = vgpu_load(&bucket->returned_ns);
    if (all == taken || !vgpu_cas(&bucket->returned_ns, &taken, all) || all < taken)
        return;
    pay(process, device, -(int64_t)((all - taken) * 100 / turn->core));
    vgpu_add(&bucket->busy_ns, (uint64_t)-(int64_t)(all - taken));
}

// A container has used about the machine's uptime at most, and each nanosecond of it moves
// paid_until by a hundred at most (a quota of 1 percent).
bool vgpu_bucket_is_possible(const struct vgpu_process *process, int device, uint64_t now) {
    const struct vgpu_counters_device *bucket = counters(process, device);
    return vgpu_load(&bucket->paid_until) / 256 <= now && vgpu_load(&bucket->working_until) / 256 <= now;
}

uint64_t vgpu_bucket_due(const struct vgpu_process *process, int device,
                         const struct vgpu_turn *turn, uint64_t now, struct vgpu_price price) {
    take_back(process, device, turn);
    uint64_t begin = begin_of(turn, now);
    uint64_t pays = price.ns * 100 / turn->core;
    uint64_t paid = vgpu_load(&counters(process, device)->paid_until) +
                    (pays < turn->period ? pays : turn->period) / 2;
    if (paid >= begin + turn->period)
        return begin_of(turn, paid);
    uint64_t until = vgpu_load(&counters(process, device)->working_until);
    if (turn->ahead != 0 && until > now + turn->ahead)
        return until - turn->ahead;
    if (turn->part == turn->period)
        return now;
    if (turn->others > now)
        return turn->others;
    uint64_t room = left(process, device, turn, begin, now);
    uint64_t fits = turn->idle ? price.worst / 4 * 3 : (price.worst < turn->part ? price.worst : turn->part) / 2;
    return room > 0 && fits <= room ? now : begin + turn->period;
}

uint64_t vgpu_bucket_room(const struct vgpu_process *process, int device,
                          const struct vgpu_turn *turn, uint64_t now) {
    return turn->part == turn->period ? UINT64_MAX
                                      : left(process, device, turn, begin_of(turn, now), now);
}

uint64_t vgpu_bucket_behind(const struct vgpu_process *process, int device,
                            const struct vgpu_turn *turn, uint64_t now, struct vgpu_queue *queue) {
    uint64_t *first = &counters(process, device)->waiting_since, since = vgpu_load(first);
    bool older = queue->since != 0 && queue->since <= since; // or the first one itself
    if (since == 0 || older || since + turn->period / BEHIND_PART >= now)
        return now;
    if (queue->first != since)
        queue->behind = 0;
    queue->first = since;
    if (queue->behind >= VGPU_LONGEST_BEHIND_NS) { // it has died
        vgpu_cas(first, &since, 0);
        return now;
    }
    queue->behind += BEHIND_NS;
    return now + BEHIND_NS;
}

uint64_t vgpu_bucket_wait(struct vgpu_process *process, int device, uint64_t now, uint64_t until,
                          struct vgpu_queue *queue) {
    struct vgpu_counters_device *bucket = counters(process, device);
    if (queue->since == 0)
        queue->since = now;
    uint64_t since = vgpu_load(&bucket->waiting_since);
    if (since == 0 || since > queue->since)
        vgpu_cas(&bucket->waiting_since, &since, queue->since);
    uint64_t longest = vgpu_load(&bucket->paid_until) > now ? LONGEST_SLEEP_NS : LATE_SLEEP_NS;
    uint64_t then = vgpu_pause(now, until - now < longest ? until - now : longest);
    vgpu_add(&bucket->throttled_ns, then - now);
    return then;
}

// Invariant 3.
void vgpu_bucket_go(const struct vgpu_process *process, int device, const struct vgpu_turn *turn, uint64_t now,
                    const struct vgpu_queue *queue) {
    struct vgpu_counters_device *bucket = counters(process, device);
    bool turns = turn->part != turn->period;
    uint64_t since = turns && queue->since != 0 ? queue->since : now, first = vgpu_load(&bucket->waiting_since);
    if (turns && first != 0 && first < since)
        since = first;
    if (since + VGPU_PERIOD_MAX_NS < now)
        since = now - VGPU_PERIOD_MAX_NS;
    uint64_t until = vgpu_load(&bucket->paid_until);
    uint64_t saved = turns ? turn->period : until == 0 ? VGPU_PERIOD_NS : SAVED_NS * 100 / turn->core; // 0: its first launch
    uint64_t earliest = begin_of(turn, since) - saved;
    while (until < earliest && !vgpu_cas(&bucket->paid_until, &until, earliest))
        ;
}

void vgpu_bucket_pass(const struct vgpu_process *process, int device, const struct vgpu_queue *queue, uint64_t next) {
    uint64_t since = queue->since;
    if (since != 0)
        vgpu_cas(&counters(process, device)->waiting_since, &since, next);
}

void vgpu_bucket_charge(struct vgpu_process *process, int device, uint32_t core, uint64_t now, uint64_t ns, uint64_t launches) {
    struct vgpu_counters_device *bucket = counters(process, device);
    if (core != 0) // or the last neighbour with a quota has gone
        vgpu_add(&bucket->paid_until, ns * 100 / core);
    uint64_t until = vgpu_load(&bucket->working_until);
    while (!vgpu_cas(&bucket->working_until, &until, (until > now ? until : now) + ns))
        ;
    vgpu_add(&bucket->busy_ns, ns);
    if (!vgpu_grow(&bucket->launches, &process->seen.launches[device], launches))
        vgpu_damage(process);
}

void vgpu_bucket_correct(struct vgpu_process *process, int device, uint32_t core, int64_t ns, uint64_t moved) {
    struct vgpu_counters_device *bucket = counters(process, device);
    if (core != 0)
        pay(process, device, ns * 100 / core);
    vgpu_add(&bucket->working_until, (uint64_t)ns - moved);
    vgpu_add(&bucket->busy_ns, (uint64_t)ns);
}

uint64_t vgpu_bucket_late(const struct vgpu_process *process, int device, uint64_t now, uint64_t moved) {
    uint64_t *word = &counters(process, device)->working_until, until = vgpu_load(word), then;
    do {
        uint64_t due = until - moved;
        then = now + (now - due < LATEST_NS ? now - due : LATEST_NS);
        if (now <= due || then <= until)
            return moved;
    } while (!vgpu_cas(word, &until, then));
    return moved + then - until;
}
