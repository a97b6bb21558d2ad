// SPDX-License-Identifier: Apache-2.0
//
// Device time without a device: the bucket, the costs. Calendars: busy_union_test.c.

#include "check.h"
#include "compute/token_bucket.h"

#define MS UINT64_C(1000000)
#define AT (UINT64_C(1) << 50)

void vgpu_test_step(void) {}

// When a launch may start that takes as long as all others of its kind.
static uint64_t due_at(struct vgpu_process *process, const struct vgpu_turn *turn, uint64_t now, uint64_t ns) {
    return vgpu_bucket_due(process, 0, turn, now, (struct vgpu_price){ns, ns, 1});
}

// A launch that may go, of one that has waited since then, or hasn't.
static void launch_at(struct vgpu_process *process, const struct vgpu_turn *turn, uint64_t now, uint64_t ns, uint64_t since) {
    struct vgpu_queue queue = {.since = since};
    vgpu_bucket_go(process, 0, turn, now, &queue);
    vgpu_bucket_charge(process, 0, turn->core, now, ns, 1);
}

// Launches whenever it may, from now until then. Returns how much that was.
static uint64_t launch_until(struct vgpu_process *process, const struct vgpu_turn *turn, uint64_t now, uint64_t end, uint64_t launch) {
    uint64_t used = 0;
    while (now < end) {
        uint64_t due = due_at(process, turn, now, launch);
        CHECK(due >= now && due <= now + 2 * turn->period + launch * 100 / turn->core);
        if (due > now) {
            now = due;
            continue;
        }
        launch_at(process, turn, now, launch, 0);
        used += launch;
        now += launch; // on the device
    }
    return used;
}

// A container that launches whenever it may gets its quota, whatever its launches take. One
// that was idle has saved 9 ms of the device's time: so much more it gets in the next second,
// beside what a period gives in advance, and so much at once.
static void buckets(void) {
    static struct vgpu_counters counters;
    static struct vgpu_process zero, *process = &zero;
    process->region.counters = &counters;
    for (uint32_t quota = 1; quota < 100; quota += 7) {
        process->limits.device[0].core_percent = quota;
        struct vgpu_turn turn = vgpu_turn(process, 0, AT);
        for (uint64_t launch = 10000; launch <= 100 * MS; launch *= 10) {
            uint64_t pause = 5000 * MS + launch * 100 / quota;
            uint64_t begin = AT + 3 * MS, end = begin + 20000 * MS, again = end + pause;
            counters.header.device[0].paid_until = 0;
            uint64_t used = launch_until(process, &turn, begin, end, launch), fair = (end - begin) / 100 * quota;
            CHECK(used <= fair + launch + 2 * turn.period && used + launch + turn.period >= fair);
            used = launch_until(process, &turn, again, again + 1000 * MS, launch);
            bool rounds = launch >= turn.period;
            uint64_t more = 9 * MS + turn.period * (quota < 50 || rounds ? quota : 100 - quota) / 100; // by when it comes back
            CHECK(used >= 10 * MS * quota && used <= 10 * MS * quota + more + launch);
            used = launch_until(process, &turn, again + 1000 * MS + pause, again + 1009 * MS + pause, launch);
            CHECK(used >= 9 * MS);
        }
    }
}

// Side by side with others, launches start in the container's turn, and are through
// at its end but for half of one; and the container has its quota.
static void turns(void) {
    static struct vgpu_counters counters;
    static struct vgpu_process zero, *process = &zero;
    process->region.counters = &counters;
    process->limits.device[0].core_percent = 30;
    struct vgpu_turn turn = {.core = 30, .neighbours = true, .period = 20 * MS, .phase = 7 * MS, .part = 7 * MS};
    for (uint64_t launch = 10000; launch <= 6 * MS; launch += launch / 3) {
        uint64_t start = AT - AT % turn.period + turn.phase, now = start, until = now, used = 0;
        counters.header.device[0].paid_until = counters.header.device[0].working_until = 0;
        while (now < start + 2000 * MS) {
            uint64_t due = due_at(process, &turn, now, launch);
            if (due > now) {
                CHECK(due <= now + 2 * turn.period + launch * 100 / 30);
                now = due;
                continue;
            }
            uint64_t begin = now - (now - turn.phase) % turn.period;
            CHECK(now < begin + turn.part);
            launch_at(process, &turn, now, launch, 0);
            until = (until > now ? until : now) + launch;
            CHECK(until <= begin + turn.part + launch / 2);
            used += launch;
            now += launch / 4; // launched before the last one is through
        }
        CHECK(used <= 600 * MS + launch + 10 * MS);
        CHECK(launch > MS || used + launch + 6 * MS >= 600 * MS);
    }
}

// What is launched without asking fits into the turn; and what wasn't used of one
// period is saved.
static void ends_of_turns(void) {
    static struct vgpu_counters counters;
    static struct vgpu_process zero, *process = &zero;
    process->region.counters = &counters;
    process->limits.device[0].core_percent = 30;
    struct vgpu_turn turn = {.core = 30, .neighbours = true, .period = 20 * MS, .part = 7 * MS};
    uint64_t begin = AT - AT % turn.period;
    CHECK(due_at(process, &turn, begin + 6 * MS, 2 * MS) == begin + 6 * MS);
    CHECK(due_at(process, &turn, begin + 6 * MS + 1, 2 * MS) == begin + turn.period);
    CHECK(vgpu_bucket_due(process, 0, &turn, begin + 6 * MS, (struct vgpu_price){2 * MS, 4 * MS, 9}) == begin + turn.period);
    CHECK(vgpu_bucket_room(process, 0, &turn, begin + 5 * MS) == 2 * MS);
    CHECK(vgpu_bucket_room(process, 0, &turn, begin + 8 * MS) == 0);
    turn = (struct vgpu_turn){.core = 60, .neighbours = true, .period = 500 * MS, .part = 300 * MS};
    begin = AT - AT % turn.period;
    launch_at(process, &turn, begin, 6 * MS, 0);
    CHECK(counters.header.device[0].paid_until == begin - 500 * MS + 10 * MS);
    CHECK(counters.header.device[0].working_until == begin + 6 * MS);
    CHECK(vgpu_bucket_room(process, 0, &turn, begin) == 294 * MS);
}

// What a container saves is what it didn't want: while a launch waits it loses nothing,
// for a second.
static void waits(void) {
    static struct vgpu_counters counters;
    static struct vgpu_process zero, *process = &zero;
    uint64_t *paid = &counters.header.device[0].paid_until;
    process->region.counters = &counters;
    process->limits.device[0].core_percent = 50;
    struct vgpu_turn turn = {.core = 50, .neighbours = true, .period = 20 * MS, .part = 10 * MS};
    uint64_t begin = AT - AT % turn.period;
    for (uint64_t waited = 0; waited < 3000 * MS; waited += 100 * MS) {
        uint64_t least = begin - (waited < 1000 * MS ? waited : 1000 * MS) - turn.period;
        *paid = begin - 900 * MS;
        launch_at(process, &turn, begin, MS, waited != 0 ? begin - waited : 0);
        CHECK(*paid == (least > begin - 900 * MS ? least : begin - 900 * MS) + 2 * MS);
    }
    *paid = begin - 900 * MS; // another thread's launch has waited
    counters.header.device[0].waiting_since = begin - 500 * MS;
    launch_at(process, &turn, begin, MS, 0);
    CHECK(*paid == begin - 520 * MS + 2 * MS);
    turn = vgpu_turn(process, 0, AT); // no turns
    *paid = begin - 900 * MS;
    launch_at(process, &turn, begin, MS, begin - 500 * MS);
    CHECK(*paid == begin - 18 * MS + 2 * MS);
    *paid = 0; // its first launch
    launch_at(process, &turn, begin, MS, 0);
    CHECK(*paid == begin - 10 * MS + 2 * MS);
}

// Whoever has others' time doesn't launch far ahead of the device.
static void bursts(void) {
    static struct vgpu_counters counters;
    static struct vgpu_process zero, *process = &zero;
    process->region.counters = &counters;
    process->limits.device[0].core_percent = 30;
    struct vgpu_turn turn = vgpu_turn(process, 0, AT);
    turn.core = 100;
    turn.ahead = 4000000;
    uint64_t now = AT, launched = 0;
    for (uint64_t due = now; due == now; due = due_at(process, &turn, now, MS)) {
        launch_at(process, &turn, now, MS, 0);
        launched++;
    }
    CHECK(launched >= 4 && launched <= 5);
    CHECK(due_at(process, &turn, now + MS, MS) == now + MS);
}

// A launch goes before one that has waited for more than a quarter of a period only if that
// one doesn't look any more; whoever goes says who is next, or nobody.
static void queues(void) {
    static struct vgpu_counters counters;
    static struct vgpu_process zero, *process = &zero;
    struct vgpu_queue first = {0}, second = {0}, third = {0};
    process->region.counters = &counters;
    process->limits.device[0].core_percent = 30;
    struct vgpu_turn turn = vgpu_turn(process, 0, AT);
    vgpu_bucket_wait(process, 0, AT, AT + 1, &first);
    vgpu_bucket_wait(process, 0, AT + MS, AT + MS + 1, &second);
    CHECK(vgpu_bucket_behind(process, 0, &turn, AT + 2 * MS, &third) == AT + 2 * MS);
    CHECK(vgpu_bucket_behind(process, 0, &turn, AT + 11 * MS, &first) == AT + 11 * MS);
    CHECK(vgpu_bucket_behind(process, 0, &turn, AT + 11 * MS, &second) > AT + 11 * MS);
    struct vgpu_queue older = {.since = AT - MS}; // that has not looked for long
    CHECK(vgpu_bucket_behind(process, 0, &turn, AT + 11 * MS, &older) == AT + 11 * MS);
    vgpu_bucket_go(process, 0, &turn, AT + 11 * MS, &first);
    vgpu_bucket_pass(process, 0, &first, second.since);
    CHECK(vgpu_bucket_behind(process, 0, &turn, AT + 12 * MS, &third) > AT + 12 * MS);
    CHECK(vgpu_bucket_behind(process, 0, &turn, AT + 12 * MS, &second) == AT + 12 * MS);
    vgpu_bucket_pass(process, 0, &second, 0);
    CHECK(vgpu_bucket_behind(process, 0, &turn, AT + 12 * MS, &third) == AT + 12 * MS);
    vgpu_bucket_wait(process, 0, AT + 2 * MS, AT + 2 * MS + 1, &second); // and then it dies
    uint64_t now = AT + 20 * MS, due, waited = 0;
    while ((due = vgpu_bucket_behind(process, 0, &turn, now, &third)) > now) {
        waited += due - now;
        now = due;
    }
    CHECK(waited > MS && waited <= 20 * MS);
    for (uint64_t i = 0; i < 100; i++) { // one after the other of those that live
        struct vgpu_queue next = {0};
        now += MS;
        vgpu_bucket_wait(process, 0, now - 5 * MS, now, &next);
        CHECK(vgpu_bucket_behind(process, 0, &turn, now, &third) > now);
        vgpu_bucket_pass(process, 0, &next, 0);
    }
}

// While a launch of which nobody knows what it takes isn't through, the container works for
// as long again as it has by now, up to 20 ms; once it is measured, for what it took.
static void late(void) {
    static struct vgpu_counters counters;
    static struct vgpu_process zero, *process = &zero;
    uint64_t *until = &counters.header.device[0].working_until, moved = 0;
    process->region.counters = &counters;
    process->limits.device[0].core_percent = 30;
    struct vgpu_turn turn = vgpu_turn(process, 0, AT);
    vgpu_bucket_charge(process, 0, turn.core, AT, 0, 1);
    CHECK(vgpu_bucket_late(process, 0, AT, 0) == 0 && *until == AT);
    for (uint64_t ms = 1; ms <= 50; ms += 7) {
        moved = vgpu_bucket_late(process, 0, AT + ms * MS, moved);
        CHECK(*until == AT + (ms + (ms < 20 ? ms : 20)) * MS && moved == *until - AT);
    }
    CHECK(vgpu_bucket_late(process, 0, AT + 43 * MS, moved) == moved);
    vgpu_bucket_correct(process, 0, turn.core, 51 * MS, moved);
    CHECK(*until == AT + 51 * MS);
}

// A debt, or work under way, that can be is told from what somebody has written; and what goes
// back is found.
static void garbage(void) {
    static struct vgpu_counters counters;
    static struct vgpu_process zero, *process = &zero;
    struct vgpu_counters_device *bucket = &counters.header.device[0];
    process->region.counters = &counters;
    process->limits.device[0].core_percent = 1;
    struct vgpu_turn turn = vgpu_turn(process, 0, AT);
    vgpu_bucket_charge(process, 0, turn.core, AT, AT, 1); // has worked since the machine began
    CHECK(vgpu_bucket_is_possible(process, 0, AT) && bucket->paid_until == 100 * AT);
    bucket->paid_until = UINT64_C(1) << 62;
    CHECK(!vgpu_bucket_is_possible(process, 0, AT));
    bucket->paid_until = 0;
    bucket->working_until = UINT64_MAX;
    CHECK(!vgpu_bucket_is_possible(process, 0, AT));
    CHECK(!process->damaged);
    bucket->launches = 0;
    vgpu_bucket_charge(process, 0, turn.core, AT, MS, 1);
    CHECK(process->damaged);
}

// A cost follows the mean, and its worst what was measured apart from others; of kinds
// that share a place the last ones are known.
static void costs(void) {
    static struct vgpu_costs table;
    uint64_t key = vgpu_cost_key(&table, 1, 2, 3);
    struct vgpu_price price;
    CHECK(!vgpu_cost_get(&table, key, &price) && !vgpu_cost_get(&table, 0, &price));
    for (int i = 0; i < 100; i++)
        vgpu_cost_learn(&table, key, 1000 + (uint64_t)(i % 2) * 1000, VGPU_APART);
    CHECK(vgpu_cost_get(&table, key, &price) && price.ns > 1300 && price.ns < 1700 && price.worst > 1900 && price.times == 100);
    CHECK(table.learned == 100 && table.lately[99 % VGPU_COSTS_LATELY] == key);
    vgpu_cost_learn(&table, key, 5000, VGPU_AMONG);
    CHECK(vgpu_cost_get(&table, key, &price) && price.worst < 2300 && price.worst >= price.ns);
    vgpu_cost_learn(&table, key, 5000, VGPU_APART);
    vgpu_cost_learn(&table, key, 1000, VGPU_APART);
    CHECK(vgpu_cost_get(&table, key, &price) && price.worst > 4900);
    for (uint64_t i = 0; i < 100000; i++)
        vgpu_cost_learn(&table, vgpu_cost_key(&table, i, 0, 0), i, VGPU_APART);
    CHECK(vgpu_cost_get(&table, vgpu_cost_key(&table, 99999, 0, 0), &price) && price.ns == 99999);
}

// A program with some hundred kinds of launches is one whose launches are all known.
static void many_costs(void) {
    static struct vgpu_costs table;
    struct vgpu_price price;
    const void *function = (const void *)(uintptr_t)0x1000;
    for (uint64_t i = 0; i < 300; i++)
        vgpu_cost_learn(&table, vgpu_cost_key(function, i, 0, 0), i, VGPU_APART);
    for (uint64_t i = 0; i < 300; i++)
        CHECK(vgpu_cost_get(&table, vgpu_cost_key(function, i, 0, 0), &price) && price.ns == i);
}

// What was measured beside others counts until it is known how long such launches take
// apart from them, and again once that was long ago.
static void costs_beside_others(void) {
    static struct vgpu_costs table;
    uint64_t key = vgpu_cost_key(&table, 1, 2, 3);
    struct vgpu_price price;
    for (int i = 0; i < 3; i++)
        vgpu_cost_learn(&table, key, 2000, VGPU_BESIDE);
    CHECK(vgpu_cost_get(&table, key, &price) && price.ns == 2000);
    vgpu_cost_learn(&table, key, 1400, VGPU_EARLY);
    CHECK(vgpu_cost_get(&table, key, &price) && price.ns == 1400 && price.worst == 1400);
    vgpu_cost_learn(&table, key, 1000, VGPU_APART);
    CHECK(vgpu_cost_get(&table, key, &price) && price.ns == 1000 && price.worst == 1000);
    vgpu_cost_learn(&table, key, 1500, VGPU_BESIDE);
    vgpu_cost_learn(&table, key, 1500, VGPU_EARLY);
    CHECK(vgpu_cost_get(&table, key, &price) && price.ns == 1000 && price.worst == 1000);
    for (int i = 0; i < 100; i++)
        vgpu_cost_learn(&table, key, 9000, VGPU_BESIDE);
    CHECK(vgpu_cost_get(&table, key, &price) && price.ns > 8000);
}

// A worst that was seen once is forgotten: after hundreds of short launches, after some
// seconds of long ones.
static void worst_is_forgotten(void) {
    static struct vgpu_costs table;
    for (uint64_t ns = 100000; ns <= 100 * MS; ns *= 10) {
        uint64_t key = vgpu_cost_key(&table, ns, 0, 0), launches = ns < 20 * MS ? 1000 : 200;
        struct vgpu_price price;
        vgpu_cost_learn(&table, key, ns, VGPU_APART);
        vgpu_cost_learn(&table, key, 2 * ns, VGPU_APART);
        for (uint64_t i = 0; i < 10; i++)
            vgpu_cost_learn(&table, key, ns, VGPU_APART);
        CHECK(vgpu_cost_get(&table, key, &price) && price.worst > ns + ns / 2);
        for (uint64_t i = 0; i < launches; i++)
            vgpu_cost_learn(&table, key, ns, VGPU_APART);
        CHECK(vgpu_cost_get(&table, key, &price) && price.worst < ns + ns / 20);
    }
}

// A turn begins when others' work is through; and what of the container's charges was
// others' work is taken off once, by one of its processes.
static void others(void) {
    static struct vgpu_counters counters;
    static struct vgpu_process zero, *process = &zero;
    static struct vgpu_pace pace;
    process->region.counters = &counters;
    process->pace = &pace;
    process->limits.device[0].core_percent = 30;
    struct vgpu_turn turn = {.core = 30, .neighbours = true, .period = 20 * MS, .part = 7 * MS};
    uint64_t begin = AT - AT % turn.period;
    turn.others = begin + 3 * MS;
    CHECK(due_at(process, &turn, begin + 1, MS) == begin + 3 * MS);
    CHECK(due_at(process, &turn, begin + 3 * MS, MS) == begin + 3 * MS);
    turn.others = begin + 8 * MS; // the next turn begins elsewhere than the last one
    CHECK(due_at(process, &turn, begin + 1, MS) == begin + 8 * MS);
    turn.others = 0;
    launch_at(process, &turn, begin, 30 * MS, 0);
    CHECK(due_at(process, &turn, begin, MS) > begin);
    for (int i = 0; i < 2; i++) {
        pace.device[0].returned_ns = 27 * MS;
        due_at(process, &turn, begin, MS);
        CHECK(counters.header.device[0].busy_ns == 3 * MS && counters.header.device[0].paid_until == begin - 20 * MS + 10 * MS);
    }
    pace.device[0].returned_ns = 5; // another loop's file
    due_at(process, &turn, begin, MS);
    pace.device[0].returned_ns = MS + 5;
    due_at(process, &turn, begin, MS);
    CHECK(counters.header.device[0].busy_ns == 2 * MS);
    pace.device[0].returned_ns = 1000 * begin; // given back by a smaller quota than it was charged with
    due_at(process, &turn, begin, MS);
    CHECK(counters.header.device[0].paid_until == 0 && vgpu_bucket_is_possible(process, 0, begin));
}

int main(void) {
    buckets();
    turns();
    ends_of_turns();
    waits();
    bursts();
    queues();
    late();
    garbage();
    costs();
    many_costs();
    costs_beside_others();
    worst_is_forgotten();
    others();
    return 0;
}
