// SPDX-License-Identifier: Apache-2.0
//
// Launches that their thread stream can't pay for: they are measured, charged and wait.
//
// Invariants:
//   1. A launch is charged what its class has cost so far, before or shortly after
//      it was launched (a thread stream's allowance); once its batch is through, the
//      difference to the measurement.
//   2. At most VGPU_BATCHES batches of a stream are under way and not measured: two
//      milliseconds of what is expected, or eight launches that are longer than a
//      batch. Of those that may take longer than expected, only as many as a period
//      pays for, and the turn has room for, if they do, or one. Of a context's launches,
//      only one that is among the first of its class.
//   3. Nothing here is recorded into a stream that is capturing, and no capture
//      is disturbed.
//   4. A launch that waits holds no lock, and has ended its batch: the pause isn't in it.
//   5. Waiting for measurements ends after LONGEST_LOOK_NS: a launch may wait on the
//      device for what the program does only later. What it has taken by then is
//      charged.
//   6. The launch that has waited longest goes first, once that is a quarter of a period.
//   7. If tracking state can't be allocated, or the counters are damaged, the launch fails.

#include "compute/throttle.h"

#include "compute/destroyed_streams.h"
#include "compute/timing.h"
#include "memory/attach.h"

#define FIRST_TIMES 4 // measurements of a launch class
#define EACH_MORE 4   // further ones, for each launch that may be under way on a stream
#define FEW_NS (VGPU_BATCH_NS / 4) // of launches as long as this a batch holds few
#define FIRST_LOOK_NS UINT64_C(20000)
#define LONGEST_LOOK_NS UINT64_C(300000000)

// Before and after the library's own calls: events belong to the stream's
// context, and asking about them must break nobody's capture.
static void enter(struct vgpu_launch *launch) {
    if (launch->context != NULL)
        VGPU_REAL(cuCtxPushCurrent_v2)(launch->context);
    launch->capture_mode = vgpu_capture_mode(CU_CAPTURE_RELAXED);
}

static void leave(struct vgpu_launch *launch) {
    cu_ctx popped;
    vgpu_capture_mode(launch->capture_mode);
    if (launch->context != NULL)
        VGPU_REAL(cuCtxPopCurrent_v2)(&popped);
}

// How many batches of a stream may be under way: of launches that are long, the fewer the
// fewer of them were measured. Those not measured yet may take any time.
static unsigned most_ahead(const struct vgpu_price *price) {
    uint64_t seen = price->times / EACH_MORE;
    if (price->worst < FEW_NS || seen >= VGPU_BATCHES)
        return VGPU_BATCHES;
    return seen > 1 ? (unsigned)seen : 1;
}

// What the launch is expected to cost.
static void expect(struct vgpu_launch *launch) {
    const struct vgpu_costs *costs = &launch->thread->state->ctx_state->costs;
    bool measured = vgpu_cost_get(costs, launch->key, &launch->price);
    launch->unknown = !measured && !vgpu_cost_get(costs, launch->like, &launch->price);
    if (launch->unknown)
        launch->price = (struct vgpu_price){0};
    launch->unsure = launch->price.times < FIRST_TIMES;
    launch->by_itself = !measured || launch->unsure || launch->price.worst >= VGPU_BATCH_NS ||
                        launch->thread->state->probes != 0 || most_ahead(&launch->price) < VGPU_BATCHES;
}

// Samples the turn: it holds until the launch waits.
static void look(struct vgpu_launch *launch, const struct vgpu_process *process, uint64_t now) {
    launch->now = now;
    launch->turn = vgpu_turn(process, launch->thread->device, now);
}

// Reports whether measurements must come first, by invariant 2.
static bool must_sync(const struct vgpu_launch *launch) {
    const struct vgpu_stream_state *state = launch->thread->state;
    uint64_t over = state->over + launch->price.worst - launch->price.ns;
    uint64_t most = launch->turn.period * launch->turn.core / 100;
    uint64_t room = vgpu_bucket_room(state->process, state->device, &launch->turn, launch->now);
    if (most > room)
        most = room;
    return !state->open && (state->pending >= most_ahead(&launch->price) ||
                            (launch->unsure && state->ctx_state->unsure != NULL) || (state->over != 0 && over > most));
}

static void close_batch(struct vgpu_launch *launch) {
    struct vgpu_stream_state *state = launch->thread->state;
    if (state->open)
        vgpu_timing_end(state, launch->stream, launch->per_thread, launch->now);
}

static void collect(struct vgpu_stream_state *state, const struct vgpu_turn *turn) {
    vgpu_timing_collect(state, turn);
    if (state->ctx_state->unsure != NULL)
        vgpu_timing_collect(state->ctx_state->unsure, turn);
    vgpu_destroyed_collect(state->process, state->ctx_state, turn);
}

// Extends the time for which the container counts as busy while an overdue launch runs, or
// one of unknown cost.
static void extend_busy(struct vgpu_stream_state *state, uint64_t now) {
    struct vgpu_stream_state *late = state->ctx_state->unsure != NULL ? state->ctx_state->unsure : state;
    if (late->pending != 0 && late->ring[late->first].launches == 1)
        late->moved = vgpu_bucket_late(late->process, late->device, now, late->moved);
}

// Notes that the launch waits for the bucket. It may take the place of a thread that has
// died or was cancelled.
static void queue_up(struct vgpu_launch *launch) {
    struct vgpu_waiting *waiting = launch->thread->state->ctx_state->waiting;
    if (launch->queue.since == 0)
        launch->queue.since = launch->now;
    for (int i = 0; i < VGPU_WAITING && launch->place == NULL; i++)
        if (waiting[i].looked + VGPU_LONGEST_BEHIND_NS < launch->now)
            launch->place = &waiting[i];
    if (launch->place != NULL)
        *launch->place = (struct vgpu_waiting){launch->queue.since, launch->now};
}

// The launch doesn't wait for the bucket any more. Of the others that do, the one that has
// waited longest is next: it needn't wake up before launches come that have not.
static void leave_queue(struct vgpu_launch *launch) {
    const struct vgpu_stream_state *state = launch->thread->state;
    const struct vgpu_waiting *waiting = state->ctx_state->waiting;
    uint64_t next = 0;
    if (launch->queue.since == 0)
        return;
    if (launch->place != NULL)
        *launch->place = (struct vgpu_waiting){0};
    launch->place = NULL;
    for (int i = 0; i < VGPU_WAITING; i++)
        if (waiting[i].looked + VGPU_LONGEST_BEHIND_NS >= launch->now && (next == 0 || waiting[i].since < next))
            next = waiting[i].since;
    vgpu_bucket_pass(state->process, state->device, &launch->queue, next);
}

// Waits without the lock until the bucket may allow the launch.
static void wait_for_bucket(struct vgpu_launch *launch, uint64_t due) {
    struct vgpu_stream_state *state = launch->thread->state;
    close_batch(launch);
    extend_busy(state, launch->now);
    queue_up(launch);
    vgpu_unlock(&state->ctx_state->lock);
    look(launch, state->process, vgpu_bucket_wait(state->process, state->device, launch->now, due, &launch->queue));
    vgpu_lock(&state->ctx_state->lock);
}

// Waits without the lock a little for measurements, the longer the longer that has
// taken.
static void wait_for_device(struct vgpu_launch *launch) {
    struct vgpu_stream_state *state = launch->thread->state;
    uint64_t began = launch->now;
    extend_busy(state, began);
    leave_queue(launch);
    vgpu_unlock(&state->ctx_state->lock);
    look(launch, state->process, vgpu_pause(began, FIRST_LOOK_NS + launch->looked / 16));
    vgpu_lock(&state->ctx_state->lock);
    launch->looked += launch->now - began;
}

// False: what it would cost is neither known nor to be learned.
static bool open_batch(struct vgpu_launch *launch) {
    struct vgpu_stream_state *state = launch->thread->state;
    if (launch->by_itself)
        launch->now = vgpu_now();
    if (!vgpu_timing_begin(state, launch->stream, launch->per_thread, &launch->turn, launch->now) && launch->unknown)
        return false;
    struct vgpu_batch *batch = vgpu_batch_open(state);
    batch->unknown = launch->unknown;
    batch->unsure = launch->unsure;
    if (!launch->by_itself)
        return true;
    batch->like = launch->like;
    batch->gap = vgpu_now() - launch->now;
    return true;
}

// Waits until the launch may be made. Returns under the lock, with an open batch
// for it if it can be measured; false if it must not be made, or needn't be measured.
static bool prepare(struct vgpu_launch *launch) {
    struct vgpu_stream_state *state = launch->thread->state;
    const struct vgpu_turn *turn = &launch->turn;
    for (;;) {
        if (!vgpu_bucket_is_possible(state->process, state->device, launch->now))
            vgpu_damage(state->process);
        launch->freed = turn->core == 0;
        launch->refused = !launch->freed && vgpu_is_damaged(state->process);
        if (launch->refused || launch->freed) {
            vgpu_timing_drop_open(state);
            leave_queue(launch);
            return false;
        }
        collect(state, turn);
        expect(launch);
        struct vgpu_batch *batch = vgpu_batch_open(state);
        if (launch->by_itself || batch->expected + batch->over >= VGPU_BATCH_NS - VGPU_SMALLEST_STEP ||
            batch->launches >= VGPU_BATCH_LAUNCHES - 1)
            close_batch(launch);
        uint64_t due = vgpu_bucket_due(state->process, state->device, turn, launch->now, launch->price);
        if (due <= launch->now)
            due = vgpu_bucket_behind(state->process, state->device, turn, launch->now, &launch->queue);
        if (due > launch->now)
            wait_for_bucket(launch, due);
        else if (must_sync(launch) && launch->looked < LONGEST_LOOK_NS)
            wait_for_device(launch);
        else if (launch->unsure && state->ctx_state->unsure != NULL)
            vgpu_timing_overdue(state->ctx_state, turn, launch->now);
        else
            break;
    }
    vgpu_bucket_go(state->process, state->device, turn, launch->now, &launch->queue);
    leave_queue(launch);
    return state->open || state->pending == VGPU_BATCHES || open_batch(launch);
}

static cu_result begin(struct vgpu_launch *launch, struct vgpu_process *process) {
    cu_stream stream = vgpu_stream(launch->stream, launch->per_thread);
    struct vgpu_thread_stream *thread = vgpu_thread_stream_of(stream);
    cu_ctx current = NULL;
    if (!vgpu_thread_stream_is(thread, stream)) {
        cu_result result = vgpu_thread_stream_open(process, stream);
        if (result != CU_OK) // what else is wrong the driver says
            return result == CU_OUT_OF_MEMORY ? result : CU_OK;
        thread = vgpu_thread_stream_of(stream);
    }
    if (thread->state == NULL)
        return CU_OK;
    if (thread->left != 0 && vgpu_launch_class_of(vgpu_launch_class_name(thread, launch->key)) == NULL &&
        vgpu_thread_stream_learn(thread, launch->key) &&
        vgpu_launch_paid(launch->key, launch->stream, launch->per_thread))
        return CU_OK;
    launch->thread = thread;
    look(launch, process, vgpu_now());
    if (launch->turn.core == 0) {
        thread->freed = true;
        launch->thread = NULL;
        return CU_OK;
    }
    if (stream > VGPU_PER_THREAD && VGPU_REAL(cuCtxGetCurrent)(&current) == CU_OK && current != thread->ctx)
        launch->context = thread->ctx;
    enter(launch);
    vgpu_lock(&thread->state->ctx_state->lock);
    if (thread->freed) // what the open batch would measure holds launches that weren't
        vgpu_timing_drop_open(thread->state);
    thread->freed = false;
    vgpu_thread_stream_settle(thread, &launch->turn, launch->now);
    bool good = prepare(launch);
    if (!good)
        vgpu_unlock(&thread->state->ctx_state->lock);
    leave(launch);
    thread->freed = launch->freed;
    if (!good)
        launch->thread = NULL;
    if (launch->refused) {
        VGPU_LOG_ONCE("launches refused: the container's counters were overwritten");
        return CU_NOT_PERMITTED;
    }
    return good || launch->freed ? CU_OK : CU_OUT_OF_MEMORY;
}

cu_result vgpu_launch_begin(struct vgpu_launch *launch, uint64_t key, uint64_t like, cu_stream stream,
                            bool per_thread) {
    cu_result why;
    struct vgpu_process *process = vgpu_process(&why);
    *launch = (struct vgpu_launch){.key = key, .like = like, .stream = stream, .per_thread = per_thread};
    if (process == NULL)
        return CU_OK;
    return vgpu_is_capturing(process, per_thread, stream) ? CU_OK : begin(launch, process);
}

// Gives the thread stream an allowance: until the batch is full or the turn over.
static void allow(const struct vgpu_launch *launch) {
    struct vgpu_thread_stream *thread = launch->thread;
    uint64_t key = launch->key;
    const struct vgpu_batch *batch = vgpu_batch_open(thread->state);
    uint64_t taken = batch->expected + batch->over;
    uint64_t room = taken < VGPU_BATCH_NS ? VGPU_BATCH_NS - taken : 0;
    uint64_t launches = VGPU_BATCH_LAUNCHES - batch->launches;
    uint64_t left = vgpu_bucket_room(thread->state->process, thread->state->device, &launch->turn, launch->now);
    if (room > left)
        room = left;
    if (room > launches * VGPU_SMALLEST_STEP)
        room = launches * VGPU_SMALLEST_STEP;
    vgpu_thread_stream_learn_all(thread);
    if (vgpu_launch_class_of(vgpu_launch_class_name(thread, key)) != NULL || vgpu_thread_stream_learn(thread, key))
        vgpu_thread_stream_allow(thread, key, room < thread->size ? room : thread->size);
    if (thread->size < VGPU_BATCH_NS)
        thread->size *= 2;
}

// After a launch: its batch ends, or goes on by an allowance.
static void continue_batch(struct vgpu_launch *launch) {
    if (launch->by_itself) {
        close_batch(launch);
        launch->thread->state->probes -= launch->thread->state->probes != 0;
    } else {
        allow(launch);
    }
}

void vgpu_launch_end(struct vgpu_launch *launch, cu_result result) {
    if (launch->thread == NULL)
        return;
    struct vgpu_stream_state *state = launch->thread->state;
    enter(launch);
    if (result == CU_OK) {
        vgpu_timing_add(state, launch->key, 1, launch->price, &launch->turn, launch->now);
        if (launch->by_itself)
            launch->now = vgpu_now();
        if (state->open)
            continue_batch(launch);
    } else if (state->open && vgpu_batch_open(state)->launches == 0) {
        close_batch(launch); // the next one would be measured from when this one failed
    }
    vgpu_unlock(&state->ctx_state->lock);
    leave(launch);
}

void vgpu_launch_part(struct vgpu_launch *launch) {
    if (launch->thread == NULL)
        return;
    struct vgpu_stream_state *state = launch->thread->state;
    vgpu_timing_add(state, launch->key, 1, launch->price, &launch->turn, launch->now);
    launch->batch = state->open ? vgpu_batch_open(state)->opened : 0;
    vgpu_unlock(&state->ctx_state->lock);
}

// Another thread may have ended the batch during the call: what it measured then stands
// for this launch, too.
void vgpu_launch_rejoin(struct vgpu_launch *launch) {
    if (launch->thread == NULL)
        return;
    struct vgpu_stream_state *state = launch->thread->state;
    enter(launch);
    vgpu_lock(&state->ctx_state->lock);
    look(launch, state->process, vgpu_now());
    if (state->open && vgpu_batch_open(state)->opened == launch->batch)
        continue_batch(launch);
    vgpu_unlock(&state->ctx_state->lock);
    leave(launch);
}
