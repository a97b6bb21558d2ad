// SPDX-License-Identifier: Apache-2.0
//
// timeline.c: how a device's time is shared by the processes that queue work.
//
// The model is processor sharing: at any moment all clients with unfinished
// work get equal parts of the device (or of their MIG instance),
// but for what ceilings take from one and give to the others (rates.c); on a
// serial device (serial.c), one after the other gets all of it. Nobody runs in the
// background; whoever looks works the timeline out up to now.
//
// Invariants:
// - Work done never passes work queued, and the device's busy time never passes
//   wall time.
// - A client's done_ns as a function of time is what its history says, exactly,
//   for the last SIM_HISTORY corners.
// - All functions but sim_now, sim_busy_over and sim_percent want the device's lock held.
#define _GNU_SOURCE
#include "state.h"

#include <time.h>

uint64_t sim_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

// spread adds busy time that lay evenly over [from, to) to the grid.
static void spread(struct sim_buckets *b, uint64_t from, uint64_t to, uint64_t busy) {
    uint64_t length = to - from, oldest = to / SIM_BUCKET_NS;
    oldest = oldest >= SIM_BUCKETS ? (oldest - SIM_BUCKETS + 1) * SIM_BUCKET_NS : 0;
    for (uint64_t t = from > oldest ? from : oldest; t < to;) {
        uint64_t grid = t / SIM_BUCKET_NS, end = (grid + 1) * SIM_BUCKET_NS;
        if (end > to) end = to;
        unsigned slot = grid % SIM_BUCKETS;
        if (b->first[slot] != grid) {
            b->first[slot] = grid;
            b->busy_ns[slot] = 0;
        }
        b->busy_ns[slot] += (uint64_t)((double)busy * (double)(end - t) / (double)length);
        t = end;
    }
}

// sim_busy_over returns the busy nanoseconds in the last complete grid intervals.
uint64_t sim_busy_over(const struct sim_buckets *b, uint64_t now, unsigned buckets) {
    uint64_t grid = now / SIM_BUCKET_NS, sum = 0;
    for (uint64_t g = grid > buckets ? grid - buckets : 0; g < grid; g++)
        if (b->first[g % SIM_BUCKETS] == g) sum += b->busy_ns[g % SIM_BUCKETS];
    return sum;
}

// sim_percent rounds: the grid loses a nanosecond here and there.
unsigned sim_percent(uint64_t busy_ns, unsigned buckets) {
    uint64_t window = buckets * SIM_BUCKET_NS;
    return (unsigned)((busy_ns * 100 + window / 2) / window);
}

static void corner(struct sim_work *w, uint64_t at, uint64_t done) {
    w->history[w->corners % SIM_HISTORY] = (struct sim_corner){at, done};
    w->corners++;
}

// ran writes down that w went from done to done + share over [from, to).
static void ran(struct sim_work *w, uint64_t from, uint64_t to, uint64_t done, uint64_t share,
                uint64_t sharers) {
    struct sim_corner *last =
        w->corners ? &w->history[(w->corners - 1) % SIM_HISTORY] : NULL;
    bool joined = last && last->at_ns == from && last->done_ns == done;
    if (joined && w->sharers == sharers) {
        *last = (struct sim_corner){to, done + share};
    } else {
        if (!joined) corner(w, from, done);
        corner(w, to, done + share);
    }
    w->sharers = sharers;
    spread(&w->buckets, from, to, w->presence ? to - from : share);
}

static uint64_t left(struct sim_work *w) {
    uint64_t queued = atomic_load(&w->queued_ns), done = atomic_load(&w->done_ns);
    return queued > done ? queued - done : 0;
}

// part returns how much of the whole device an instance is, in sevenths.
static unsigned part(struct sim_device *d, uint32_t gi) {
    if (gi == SIM_WHOLE_GPU) return 7;
    const struct sim_model *m = sim_model(d->model);
    const struct sim_profile *p = m ? sim_profile_by_id(m, d->gi[gi].profile) : NULL;
    return p ? p->slices : 7;
}

// collect finds the clients of the device or of an instance that have work, and whether all
// of them get the same.
static unsigned collect(struct sim_state *s, unsigned dev, uint32_t gi,
                        struct sim_work *running[SIM_MAX_CLIENTS], bool *equal) {
    unsigned n = 0, high = atomic_load(&s->client_high);
    *equal = true;
    for (unsigned i = 0; i < high; i++) {
        struct sim_work *w = &s->clients[i].work[dev];
        if (!left(w) || w->gi != gi) continue;
        running[n++] = w;
        if (w->rate) *equal = false;
    }
    return n;
}

// equal_step runs them from t until one is done or time is up, and returns how
// long that was; 0 when there is too little time to divide.
static uint64_t equal_step(struct sim_work *running[], unsigned n, uint64_t t, uint64_t now) {
    uint64_t share = (now - t) / n;
    for (unsigned i = 0; i < n; i++)
        if (left(running[i]) < share) share = left(running[i]);
    for (unsigned i = 0; share && i < n; i++) {
        uint64_t done = atomic_load(&running[i]->done_ns);
        ran(running[i], t, t + share * n, done, share, n);
        atomic_store(&running[i]->done_ns, done + share);
    }
    return share * n;
}

// limited_step is the same where ceilings make a difference; used
// is the device time that they had together.
static uint64_t limited_step(struct sim_work *running[], unsigned n, uint64_t t, uint64_t now,
                             uint64_t *used) {
    uint32_t rates[SIM_MAX_CLIENTS];
    uint64_t step = now - t;
    *used = 0;
    sim_rates(running, n, rates);
    for (unsigned i = 0; i < n; i++) {
        uint64_t needs = sim_time_for(left(running[i]), running[i]->carry, rates[i]);
        if (needs < step) step = needs;
    }
    for (unsigned i = 0; i < n; i++) {
        struct sim_work *w = running[i];
        uint64_t done = atomic_load(&w->done_ns), parts = step * rates[i] + w->carry;
        uint64_t share = parts / SIM_RATE, more = left(w);
        w->carry = share < more ? (uint32_t)(parts % SIM_RATE) : 0;
        if (share > more) share = more;
        ran(w, t, t + step, done, share, (uint64_t)rates[i] << 32);
        atomic_store(&w->done_ns, done + share);
        *used += share;
    }
    return step;
}

// share_out runs the clients of the device or of an instance from t to now.
static void share_out(struct sim_state *s, unsigned dev, uint32_t gi, uint64_t t, uint64_t now) {
    struct sim_device *d = &s->devices[dev];
    unsigned sevenths = part(d, gi);
    while (t < now) {
        struct sim_work *running[SIM_MAX_CLIENTS];
        bool equal;
        unsigned n = collect(s, dev, gi, running, &equal);
        if (!n) return;
        uint64_t used, step;
        if (equal) {
            used = step = equal_step(running, n, t, now);
        } else {
            step = limited_step(running, n, t, now, &used);
        }
        if (!step) return;
        uint64_t busy = used * sevenths / 7;
        atomic_fetch_add(&d->busy_ns, busy);
        spread(&d->buckets, t, t + step, busy);
        t += step;
    }
}

// in_order runs the clients of a serial device from t to now.
static void in_order(struct sim_state *s, unsigned dev, uint64_t t, uint64_t now) {
    struct sim_device *d = &s->devices[dev];
    while (t < now && d->turns_begin != d->turns_end) {
        struct sim_work *w = &s->clients[d->turns[d->turns_begin % SIM_TURNS].client].work[dev];
        uint64_t left = sim_serial_left(s, dev, d->turns_begin), done = atomic_load(&w->done_ns);
        uint64_t share = left < now - t ? left : now - t;
        if (share) {
            ran(w, t, t + share, done, share, 1);
            atomic_store(&w->done_ns, done + share);
            atomic_fetch_add(&d->busy_ns, share);
            spread(&d->buckets, t, t + share, share);
        }
        t += share;
        if (share == left) d->turns_begin++;
    }
}

// sim_advance works the device's timeline out up to now. A device that fell off
// the bus does nothing more.
void sim_advance(struct sim_state *s, unsigned dev, uint64_t now) {
    struct sim_device *d = &s->devices[dev];
    uint64_t from = atomic_load(&d->advanced_ns);
    if (now <= from) return;
    atomic_store(&d->advanced_ns, now);
    if (!from || atomic_load(&d->lost)) return;
    if (d->serial) {
        in_order(s, dev, from, now);
        return;
    }
    share_out(s, dev, SIM_WHOLE_GPU, from, now);
    if (!atomic_load(&d->mig_current)) return;
    for (uint32_t gi = 0; gi < SIM_MAX_INSTANCES; gi++)
        if (d->gi[gi].used) share_out(s, dev, gi, from, now);
}

// limited_wait returns how long mine takes for want beside the others: piece by
// piece, as limited_step will do it.
static uint64_t limited_wait(struct sim_work *running[], unsigned n, struct sim_work *mine,
                             uint64_t want) {
    uint64_t more[SIM_MAX_CLIENTS], wait = 0;
    uint32_t rates[SIM_MAX_CLIENTS];
    for (unsigned i = 0; i < n; i++) more[i] = running[i] == mine ? want : left(running[i]);
    for (bool done = !n; !done;) {
        uint64_t step = UINT64_MAX;
        sim_rates(running, n, rates);
        for (unsigned i = 0; i < n; i++) {
            uint64_t needs = sim_time_for(more[i], 0, rates[i]);
            if (needs < step) step = needs;
        }
        wait += step;
        for (unsigned i = n; i-- > 0;) {
            uint64_t share = step * rates[i] / SIM_RATE;
            more[i] -= share < more[i] ? share : more[i];
            if (more[i]) continue;
            done |= running[i] == mine;
            n--;
            running[i] = running[n], more[i] = more[n], rates[i] = rates[n];
        }
    }
    return wait;
}

// sim_predict returns when c will have done position, if nobody queues more.
uint64_t sim_predict(struct sim_state *s, struct sim_client *c, unsigned dev, uint64_t position,
                     uint64_t now) {
    struct sim_work *mine = &c->work[dev];
    uint64_t done = atomic_load(&mine->done_ns);
    if (done >= position) return now;
    if (s->devices[dev].serial) return now + sim_serial_wait(s, c, dev, position);
    struct sim_work *running[SIM_MAX_CLIENTS];
    bool equal;
    unsigned n = collect(s, dev, mine->gi, running, &equal);
    uint64_t want = position - done, wait = left(mine) ? 0 : want;
    if (!equal) return now + limited_wait(running, n, mine, want);
    for (unsigned i = 0; i < n; i++) {
        uint64_t more = running[i] == mine ? want : left(running[i]);
        wait += more < want ? more : want;
    }
    return now + wait;
}

// sim_reached_at returns the moment at which c had done position; for one older
// than its history, the oldest moment known.
uint64_t sim_reached_at(struct sim_state *s, struct sim_client *c, unsigned dev,
                        uint64_t position) {
    struct sim_work *w = &c->work[dev];
    if (!w->corners) return atomic_load(&s->devices[dev].advanced_ns);
    uint64_t oldest = w->corners > SIM_HISTORY ? w->corners - SIM_HISTORY : 0;
    struct sim_corner b = w->history[(w->corners - 1) % SIM_HISTORY];
    for (uint64_t i = w->corners - 1; i > oldest; i--) {
        struct sim_corner a = w->history[(i - 1) % SIM_HISTORY];
        if (a.done_ns < position && position <= b.done_ns)
            return a.at_ns + (uint64_t)((double)(position - a.done_ns) *
                                        (double)(b.at_ns - a.at_ns) /
                                        (double)(b.done_ns - a.done_ns));
        b = a;
    }
    return b.at_ns;
}
