// SPDX-License-Identifier: Apache-2.0
//
// unit/timeline: the sharing of a device's time, with a clock of our own.
#define _GNU_SOURCE
#include "../state/state.h"
#include "check.h"

#define MS 1000000ull

static struct sim_state *s;

static struct sim_work *client(unsigned i, uint64_t queued) {
    if (i >= atomic_load(&s->client_high)) atomic_store(&s->client_high, i + 1);
    struct sim_work *w = &s->clients[i].work[0];
    atomic_store(&s->clients[i].in_use, 1);
    w->gi = w->ci = SIM_WHOLE_GPU;
    atomic_store(&w->queued_ns, queued);
    return w;
}

static void fresh(void) {
    free(s);
    s = calloc(1, sizeof *s);
    TRUE(s != NULL);
    s->device_count = 1;
    snprintf(s->devices[0].model, sizeof s->devices[0].model, "A100-SXM4-80GB");
    sim_advance(s, 0, 1000 * MS);
}

static void alone(void) {
    fresh();
    struct sim_work *a = client(0, 10 * MS);
    sim_advance(s, 0, 1004 * MS);
    SAME(a->done_ns, 4 * MS);
    SAME(sim_predict(s, &s->clients[0], 0, 10 * MS, 1004 * MS), 1010 * MS);
    sim_advance(s, 0, 1100 * MS);
    SAME(a->done_ns, 10 * MS);
    SAME(s->devices[0].busy_ns, 10 * MS);
    SAME(sim_reached_at(s, &s->clients[0], 0, 10 * MS), 1010 * MS);
    SAME(sim_reached_at(s, &s->clients[0], 0, 3 * MS), 1003 * MS);
}

// Two that are busy get half each; when one is done the other gets all.
static void shared(void) {
    fresh();
    struct sim_work *a = client(0, 10 * MS), *b = client(1, 30 * MS);
    SAME(sim_predict(s, &s->clients[0], 0, 10 * MS, 1000 * MS), 1020 * MS);
    SAME(sim_predict(s, &s->clients[1], 0, 30 * MS, 1000 * MS), 1040 * MS);
    sim_advance(s, 0, 1010 * MS);
    SAME(a->done_ns, 5 * MS);
    SAME(b->done_ns, 5 * MS);
    sim_advance(s, 0, 1200 * MS);
    SAME(sim_reached_at(s, &s->clients[0], 0, 10 * MS), 1020 * MS);
    SAME(sim_reached_at(s, &s->clients[1], 0, 10 * MS), 1020 * MS);
    SAME(sim_reached_at(s, &s->clients[1], 0, 30 * MS), 1040 * MS);
    SAME(s->devices[0].busy_ns, 40 * MS);
}

// A serial device does what was queued first, to its end.
static void serial(void) {
    fresh();
    s->devices[0].serial = 1;
    struct sim_work *a = client(0, 10 * MS), *b = client(1, 30 * MS);
    TRUE(sim_serial_add(s, &s->clients[0], 0, 10 * MS));
    TRUE(sim_serial_add(s, &s->clients[1], 0, 30 * MS));
    atomic_store(&a->queued_ns, 15 * MS);
    TRUE(sim_serial_add(s, &s->clients[0], 0, 15 * MS));
    SAME(sim_predict(s, &s->clients[0], 0, 10 * MS, 1000 * MS), 1010 * MS);
    SAME(sim_predict(s, &s->clients[0], 0, 12 * MS, 1000 * MS), 1042 * MS);
    SAME(sim_predict(s, &s->clients[1], 0, 5 * MS, 1000 * MS), 1015 * MS);
    sim_advance(s, 0, 1011 * MS);
    SAME(a->done_ns, 10 * MS);
    SAME(b->done_ns, 1 * MS);
    sim_advance(s, 0, 1200 * MS);
    SAME(sim_reached_at(s, &s->clients[1], 0, 30 * MS), 1040 * MS);
    SAME(sim_reached_at(s, &s->clients[0], 0, 15 * MS), 1045 * MS);
    SAME(s->devices[0].busy_ns, 45 * MS);
}

// Time in which nothing was queued counts for nobody.
static void idle(void) {
    fresh();
    struct sim_work *a = client(0, 5 * MS);
    sim_advance(s, 0, 1050 * MS);
    atomic_store(&a->queued_ns, 15 * MS);
    sim_advance(s, 0, 1055 * MS);
    SAME(a->done_ns, 10 * MS);
    SAME(sim_reached_at(s, &s->clients[0], 0, 5 * MS), 1005 * MS);
    SAME(sim_reached_at(s, &s->clients[0], 0, 7 * MS), 1052 * MS);
}

// Windows lie on a fixed grid: reading late does not stretch one.
static void grid(void) {
    fresh();
    client(0, 50 * MS);
    sim_advance(s, 0, 1150 * MS);
    SAME(sim_busy_over(&s->devices[0].buckets, 1150 * MS, 1), 50 * MS);
    SAME(sim_busy_over(&s->devices[0].buckets, 1199 * MS, 1), 50 * MS);
    SAME(sim_busy_over(&s->devices[0].buckets, 1250 * MS, 1), 0);
    SAME(sim_busy_over(&s->devices[0].buckets, 1250 * MS, 10), 50 * MS);
    SAME(sim_busy_over(&s->devices[0].buckets, 60000 * MS, 10), 0);
}

// Instances of a partitioned GPU do not slow each other; together they are no
// busier than the whole.
static void instances(void) {
    fresh();
    struct sim_device *d = &s->devices[0];
    atomic_store(&d->mig_current, 1);
    d->gi[1].used = d->gi[2].used = 1;
    d->gi[1].profile = d->gi[2].profile = 9;  // 3g
    struct sim_work *a = client(0, 7 * MS), *b = client(1, 7 * MS);
    a->gi = 1;
    b->gi = 2;
    sim_advance(s, 0, 1007 * MS);
    SAME(a->done_ns, 7 * MS);
    SAME(b->done_ns, 7 * MS);
    SAME(d->busy_ns, 6 * MS);
}

// A ceiling holds on an idle device too; what it leaves is the others'.
static void ceilings(void) {
    fresh();
    struct sim_work *a = client(0, 60 * MS), *b = client(1, 20 * MS), *c = client(2, 20 * MS);
    a->rate = 3 * SIM_RATE / 10;
    b->rate = SIM_RATE / 10;
    c->rate = 9 * SIM_RATE / 10;
    SAME(sim_predict(s, &s->clients[2], 0, 6 * MS, 1000 * MS), 1010 * MS);
    sim_advance(s, 0, 1010 * MS);
    SAME(a->done_ns, 3 * MS);
    SAME(b->done_ns, 1 * MS);
    SAME(c->done_ns, 6 * MS);
    SAME(s->devices[0].busy_ns, 10 * MS);
    // c is done after 20 / 0.6 ms, b after 200, and then a has nobody beside it.
    SAME((sim_predict(s, &s->clients[0], 0, 60 * MS, 1010 * MS) + MS / 2) / MS, 1200);
    sim_advance(s, 0, 1190 * MS);
    SAME(a->done_ns, 57 * MS);
    SAME((sim_reached_at(s, &s->clients[0], 0, 30 * MS) + MS / 2) / MS, 1100);
    sim_advance(s, 0, 2000 * MS);
    SAME((sim_reached_at(s, &s->clients[0], 0, 60 * MS) + MS / 2) / MS, 1200);
    SAME(s->devices[0].busy_ns, 100 * MS);
}

// Looking at every nanosecond costs a client with a ceiling nothing.
static void looks(void) {
    fresh();
    struct sim_work *a = client(0, 10 * MS);
    a->rate = SIM_RATE / 3;
    for (unsigned i = 1; i <= 3000; i++) sim_advance(s, 0, 1000 * MS + i);
    SAME(a->done_ns, 3000ull * (SIM_RATE / 3) / SIM_RATE);
}

static void lost(void) {
    fresh();
    struct sim_work *a = client(0, 10 * MS);
    atomic_store(&s->devices[0].lost, 1);
    sim_advance(s, 0, 1100 * MS);
    SAME(a->done_ns, 0);
}

// More corners than are kept: the newest are right.
static void history(void) {
    fresh();
    struct sim_work *a = client(0, 0);
    for (unsigned i = 0; i < 3 * SIM_HISTORY; i++) {
        sim_advance(s, 0, (1000 + 10 * i) * MS);
        atomic_fetch_add(&a->queued_ns, MS);
    }
    sim_advance(s, 0, 100000 * MS);
    unsigned n = 3 * SIM_HISTORY;
    SAME(sim_reached_at(s, &s->clients[0], 0, n * MS), (1000 + 10 * (n - 1) + 1) * MS);
    SAME(sim_reached_at(s, &s->clients[0], 0, (n - 100) * MS), (1000 + 10 * (n - 101) + 1) * MS);
}

int main(void) {
    alone();
    shared();
    serial();
    idle();
    grid();
    instances();
    ceilings();
    looks();
    lost();
    history();
    return 0;
}
