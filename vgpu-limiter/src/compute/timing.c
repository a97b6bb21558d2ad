// SPDX-License-Identifier: Apache-2.0
//
// Batches: launches of one stream with an event before and one after. What they
// were charged when they were launched is corrected to what the device worked.
//
// Invariants:
//   1. What lies between a batch's events bounds its work from above. The time
//      for which the stream may have been without work bounds it from below: it
//      had some from the last launch of the batch on, and in between too if its
//      start had not been reached by then. Between the bounds, the costs learned
//      decide.
//   2. Device time is counted once per container, whatever its streams and
//      processes (calendar). What was measured while others were at work holds some
//      of theirs: it is charged as it was measured, and what containers together
//      were charged beyond the clock the node side returns (pace).
//   3. Events are placed on the clock by bounds, too: none is passed before it is
//      recorded, or after it has been seen.
//   4. An event that fails costs only the measurement: the expected cost stands. One
//      that there is no memory to make or to record costs a launch of unknown cost, too.

#include "compute/timing.h"

#include "compute/busy_union.h"
#include "compute/token_bucket.h"

#define ANCHOR_NS 500000000      // milliseconds in a float lose nanoseconds
#define LATELY_NS UINT64_C(1000000000) // of device time
#define SAMPLE_EVERY 16          // batches
#define UNSURE_NS 20000          // about a batch, and not worth measuring a single launch
#define EXACT 32                 // of a batch's time, so small a part may be unsure

// Takes the batch off those that are not measured yet.
static void retire_batch(struct vgpu_stream_state *state, const struct vgpu_batch *batch) {
    state->over -= batch->over;
    state->ctx_state->under_way--;
    if (batch->unsure && state->ctx_state->unsure == state)
        state->ctx_state->unsure = NULL;
}

static cu_result create(cu_event *event) {
    cu_result result = *event != NULL ? CU_OK : VGPU_REAL(cuEventCreate)(event, 0);
    if (result != CU_OK)
        *event = NULL;
    return result;
}

static cu_result record(cu_event *event, cu_stream stream, bool per_thread) {
    cu_result result = create(event);
    return result == CU_OK ? VGPU_REAL_OF(cuEventRecord, per_thread)(*event, stream) : result;
}

// Notes when there are turns.
static void note_turns(struct vgpu_ctx_state *ctx_state, const struct vgpu_turn *turn, uint64_t now) {
    bool turns = turn->part != turn->period;
    if (ctx_state->turns != turns) {
        ctx_state->turns = turns;
        ctx_state->turned = now;
    }
}

bool vgpu_timing_begin(struct vgpu_stream_state *state, cu_stream stream, bool per_thread, const struct vgpu_turn *turn,
                       uint64_t now) {
    struct vgpu_batch *batch = vgpu_batch_open(state);
    note_turns(state->ctx_state, turn, now);
    *batch = (struct vgpu_batch){.start = batch->start, .end = batch->end, .opened = now};
    batch->apart = state->ctx_state->under_way == state->pending;
    if (turn->part != turn->period) {
        batch->from = now - (now + turn->period - turn->phase) % turn->period;
        batch->until = batch->from + turn->part;
    }
    cu_result made = create(&batch->end);
    if (made == CU_OK)
        made = record(&batch->start, stream, per_thread);
    state->open = made == CU_OK;
    state->ctx_state->under_way += state->open;
    return made != CU_OUT_OF_MEMORY; // what else is wrong the driver says
}

void vgpu_timing_end(struct vgpu_stream_state *state, cu_stream stream, bool per_thread, uint64_t now) {
    struct vgpu_batch *batch = vgpu_batch_open(state);
    state->open = false;
    batch->closed = now;
    if (batch->launches == 0 || record(&batch->end, stream, per_thread) != CU_OK) {
        retire_batch(state, batch);
        return;
    }
    if (batch->unsure)
        state->ctx_state->unsure = state;
    if (now - batch->opened > batch->expected / 16)
        batch->queued = VGPU_REAL(cuEventQuery)(batch->start) == CU_NOT_READY;
    state->pending++;
}

void vgpu_timing_add(struct vgpu_stream_state *state, uint64_t key, uint64_t launches,
                     struct vgpu_price price, const struct vgpu_turn *turn, uint64_t now) {
    vgpu_bucket_charge(state->process, state->device, turn->core, now, price.ns, launches);
    if (!state->open)
        return;
    struct vgpu_batch *batch = vgpu_batch_open(state);
    batch->key = batch->launches == 0 || batch->key == key ? key : 0;
    batch->launches += launches;
    batch->expected += price.ns;
    batch->over += price.worst - price.ns;
    state->over += price.worst - price.ns;
}

// When the batch was worked on, on the clock, by invariant 3.
static bool place(struct vgpu_ctx_state *ctx_state, struct vgpu_batch *batch, uint64_t seen,
                  int64_t *start, int64_t *end) {
    float length, since;
    if (VGPU_REAL(cuEventElapsedTime)(&length, batch->start, batch->end) != CU_OK || length < 0)
        return false;
    int64_t ns = (int64_t)((double)length * 1e6);
    if (ctx_state->anchor == NULL ||
        VGPU_REAL(cuEventElapsedTime)(&since, ctx_state->anchor, batch->end) != CU_OK) {
        since = ANCHOR_NS;
        *end = (int64_t)batch->opened + ns;
    } else {
        *end = (int64_t)ctx_state->anchored + (int64_t)((double)since * 1e6);
    }
    *start = *end - ns;
    int64_t early = (int64_t)batch->opened - *start, late = *end - (int64_t)seen;
    int64_t shift = early > 0 && early + late <= 0 ? early : late > 0 ? -late : 0;
    *start += shift;
    *end += shift;
    if (*start < (int64_t)batch->opened)
        *start = (int64_t)batch->opened; // some drivers say when the stream was last at work
    ctx_state->anchored += (uint64_t)shift;
    if (since > 0 && (double)since * 1e6 >= ANCHOR_NS) {
        cu_event old = ctx_state->anchor;
        ctx_state->anchor = batch->end;
        ctx_state->anchored = (uint64_t)*end;
        batch->end = old;
    }
    if (*end < *start)
        *end = *start;
    return true;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

// How much of the batch that was under way from start to end is to be charged, by
// invariants 1 and 2.
static int64_t own_time(struct vgpu_stream_state *state, const struct vgpu_batch *batch, uint64_t seen, int64_t start,
                        int64_t end, int64_t unsure) {
    struct vgpu_calendar *calendar = &state->process->region.counters->calendar[state->device];
    int64_t least = end - start - unsure;
    int64_t worked = clamp((int64_t)batch->expected, least > 0 ? least : 0, end - start);
    if (batch->launches == 1) // at the end
        start = end - worked;
    return (int64_t)vgpu_busy_union_spread(calendar, seen, (uint64_t)start, (uint64_t)end, (uint64_t)worked);
}

// What may be in a measurement from start to end: neighbours' work, but in the
// container's own turn. For a while after turns have changed, what was launched before
// that may still be at work.
static enum vgpu_measured measured(const struct vgpu_ctx_state *ctx_state, const struct vgpu_batch *batch,
                                   const struct vgpu_turn *turn, uint64_t start, uint64_t end, bool apart) {
    if (turn->neighbours && (start < batch->from || end > batch->until))
        return VGPU_BESIDE;
    uint64_t little = (end - start) / 32;
    if (start + little < turn->others && turn->others < batch->until) // later it speaks of another turn
        return VGPU_BESIDE;
    if (!apart)
        return atomic_load(&ctx_state->measures) ? VGPU_BRIEF : VGPU_AMONG;
    return turn->neighbours && start < ctx_state->turned + turn->period ? VGPU_EARLY : VGPU_APART;
}

// Goes from one value toward another, as far as `ns` of device time is of lately.
static uint64_t toward(uint64_t from, uint64_t to, uint64_t ns) {
    double part = ns < LATELY_NS ? (double)ns / (double)LATELY_NS : 1;
    return (uint64_t)((double)from + ((double)to - (double)from) * part);
}

// What a launch may take, for the node side: the worst that is known of its class, as
// long as such launches are made. What is measured beside others is taken too long: one
// that surely isn't replaces it.
static void note_longest(struct vgpu_stream_state *state, const struct vgpu_batch *batch, uint64_t ns,
                         enum vgpu_measured how) {
    struct vgpu_counters_device *device = &state->process->region.counters->header.device[state->device];
    uint64_t longest = vgpu_load(&device->longest_ns), usual = vgpu_load(&device->usual_ns), worst = ns;
    struct vgpu_price price;
    bool replaces = longest == 0 || (how != VGPU_BESIDE && state->ctx_state->rough);
    if (how == VGPU_EARLY && !replaces)
        return;
    state->ctx_state->rough = how == VGPU_BESIDE;
    if (how != VGPU_BESIDE && vgpu_cost_get(&state->ctx_state->costs, batch->key, &price) && price.worst > worst)
        worst = price.worst;
    vgpu_store(&device->longest_ns, replaces || worst > longest ? worst : toward(longest, worst, ns));
    vgpu_store(&device->usual_ns, replaces ? ns : toward(usual, ns, 4 * ns));
}

// Learns what the batch's launches take.
static void learn(struct vgpu_stream_state *state, const struct vgpu_batch *batch, uint64_t ns,
                  enum vgpu_measured how) {
    struct vgpu_costs *costs = &state->ctx_state->costs;
    if (batch->key != 0)
        vgpu_cost_learn(costs, batch->key, ns / batch->launches, how);
    if (batch->like != 0)
        vgpu_cost_learn(costs, batch->like, ns, how);
}

// Notes what one of the batch's launches took, for the slowdown: as long as the device
// took, with what neighbours did to it in that time.
static void note_slowdown(struct vgpu_stream_state *state, const struct vgpu_batch *batch, uint64_t worked, uint64_t now) {
    if (state->device < VGPU_SLOWDOWN_DEVICES)
        vgpu_slowdown_sample(&state->ctx_state->slowdown, &state->ctx_state->costs, batch->key, worked / batch->launches,
                             now, &state->process->region.slot->slowdown[state->device]);
}

// Counts the oldest batch, which is through as was seen at `seen`.
static void finish(struct vgpu_stream_state *state, const struct vgpu_turn *turn, uint64_t seen) {
    struct vgpu_batch *batch = &state->ring[state->first];
    int64_t start, end;
    note_turns(state->ctx_state, turn, seen);
    state->first = (state->first + 1) % (VGPU_BATCHES + 1);
    state->pending--;
    retire_batch(state, batch);
    uint64_t moved = state->moved;
    state->moved = 0;
    bool apart = batch->apart && state->ctx_state->under_way == state->pending + state->open;
    if (!place(state->ctx_state, batch, seen, &start, &end)) {
        vgpu_bucket_correct(state->process, state->device, turn->core, 0, moved);
        return;
    }
    // A single launch on an idle stream: start was passed before the launch.
    int64_t worked = end - start, unsure = batch->queued ? 0 : (int64_t)(batch->closed - batch->opened);
    bool alone = batch->launches == 1;
    if (alone && !batch->queued && (int64_t)batch->gap <= worked / 8 + 1000) {
        start += clamp((int64_t)batch->gap, 0, worked);
        unsure -= clamp((int64_t)batch->gap, 0, unsure);
        worked = end - start;
    }
    if (state->ctx_state->beside != turn->neighbours)
        vgpu_cost_doubt(&state->ctx_state->costs);
    state->ctx_state->beside = turn->neighbours;
    bool sure = unsure <= worked / 8 + UNSURE_NS, exact = unsure <= worked / EXACT;
    if (batch->unknown)
        unsure = 0;
    int64_t ns = own_time(state, batch, seen, start, end, unsure);
    // What ran over into others' turns holds their work, and says no more than
    // that it was longer than the turn.
    enum vgpu_measured how = measured(state->ctx_state, batch, turn, (uint64_t)start, (uint64_t)end, apart);
    if (sure || batch->unknown)
        learn(state, batch, (uint64_t)ns, how);
    vgpu_slowdown_worked(&state->ctx_state->slowdown, (uint64_t)ns);
    if (exact && apart && batch->key != 0)
        note_slowdown(state, batch, (uint64_t)worked, seen);
    vgpu_bucket_correct(state->process, state->device, turn->core, ns - (int64_t)batch->expected, moved);
    if (alone && apart && (how != VGPU_BESIDE || ns > (int64_t)turn->part))
        note_longest(state, batch, (uint64_t)ns, how);
    if (!alone && !sure && state->ends) // there is no next launch to measure
        atomic_store(&state->ctx_state->unmeasured, true);
    if (state->probes == 0)
        state->probes = (!alone && !sure) || ++state->batches % SAMPLE_EVERY == 0;
}

void vgpu_timing_collect(struct vgpu_stream_state *state, const struct vgpu_turn *turn) {
    while (state->pending != 0 &&
           VGPU_REAL(cuEventQuery)(state->ring[state->first].end) != CU_NOT_READY)
        finish(state, turn, vgpu_now());
}

void vgpu_timing_overdue(struct vgpu_ctx_state *ctx_state, const struct vgpu_turn *turn, uint64_t now) {
    struct vgpu_stream_state *state = ctx_state->unsure;
    ctx_state->unsure = NULL;
    for (unsigned i = 0; state != NULL && i < state->pending; i++) {
        struct vgpu_batch *batch = &state->ring[(state->first + i) % (VGPU_BATCHES + 1)];
        uint64_t taken = now - batch->opened;
        if (!batch->unsure || taken <= batch->expected || VGPU_REAL(cuEventQuery)(batch->start) != CU_OK)
            continue;
        vgpu_bucket_correct(state->process, state->device, turn->core, (int64_t)(taken - batch->expected), state->moved);
        state->moved = 0;
        batch->expected = taken;
    }
}

void vgpu_timing_drop(struct vgpu_stream_state *state) {
    vgpu_bucket_correct(state->process, state->device, 0, 0, state->moved);
    state->moved = 0;
    vgpu_timing_drop_open(state);
    if (state->pending != 0)
        atomic_store(&state->ctx_state->unmeasured, true);
    for (unsigned i = 0; i < state->pending; i++)
        retire_batch(state, &state->ring[(state->first + i) % (VGPU_BATCHES + 1)]);
    state->pending = 0;
}

void vgpu_timing_drop_open(struct vgpu_stream_state *state) {
    if (!state->open)
        return;
    atomic_store(&state->ctx_state->unmeasured, true);
    retire_batch(state, vgpu_batch_open(state));
    state->open = false;
}
