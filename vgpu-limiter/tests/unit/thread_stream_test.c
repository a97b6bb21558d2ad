// SPDX-License-Identifier: Apache-2.0
//
// thread_stream_test COUNTERS: what a thread launches by itself is told to the stream's batch as it
// was charged, of however many classes it is, and never more than it was allowed; and what is
// neither known nor to be measured isn't launched.

#include "driver.h"


#define CLASSES 200

static char a_context[16], an_event[16], a_stream[64] __attribute__((aligned(256))); // a thread stream each

static cu_result create_event(cu_event *event, unsigned flags) {
    *event = (cu_event)(void *)an_event;
    return flags == 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result recorded = CU_OK;
static cu_result record(cu_event event, cu_stream stream) {
    if (recorded != CU_OK)
        return recorded;
    return event != NULL && stream != NULL ? CU_OK : CU_INVALID_VALUE;
}

static cu_result query(cu_event event) { return event != NULL ? CU_NOT_READY : CU_INVALID_VALUE; }

void vgpu_test_step(void) {}

static struct vgpu_stream_state *volatile states[4]; // where the sanitizer looks for what has been lost

static struct vgpu_thread_stream *open_stream(unsigned i) {
    cu_stream stream = (cu_stream)(void *)(a_stream + 16 * i);
    CHECK(vgpu_thread_stream_open(&process, stream) == CU_OK);
    states[i] = vgpu_thread_stream_of(stream)->state;
    return vgpu_thread_stream_of(stream);
}

// As the driver's functions are called in turn with so many grids.
static uint64_t key_of(unsigned class) {
    return vgpu_cost_key(a_context, (uint64_t)(1 + class) << 32 | 1, UINT64_C(1) << 32 | 32, UINT64_C(1) << 32 | 1);
}

static void takes(struct vgpu_thread_stream *mine, uint64_t key, uint64_t ns, uint64_t worst) {
    vgpu_cost_learn(&mine->state->ctx_state->costs, key, 0, VGPU_APART); // more than once, it is a mean
    struct vgpu_cost *cost = mine->state->ctx_state->costs.cost;
    for (size_t i = 0; i < VGPU_COSTS; i++)
        if (cost[i].key == key) {
            cost[i].ns = ns;
            cost[i].worst = worst;
        }
    CHECK(vgpu_thread_stream_learn(mine, key));
}

// Launches classes in turn, from this one on, until the allowance is used up or so many are
// made; returns how many were.
static unsigned launches(struct vgpu_thread_stream *mine, unsigned class, unsigned classes, unsigned most) {
    unsigned n = 0;
    while (n < most && vgpu_launch_paid(key_of(class + n % classes), mine->stream, false))
        n++;
    return n;
}

static const struct vgpu_turn turn = {.core = 30, .period = VGPU_PERIOD_NS, .part = VGPU_PERIOD_NS};

static struct vgpu_batch *begin(struct vgpu_thread_stream *mine, unsigned class, uint64_t ns) {
    if (mine->state->open)
        vgpu_timing_end(mine->state, mine->stream, false, 1);
    mine->state->pending = 0;
    struct vgpu_batch *batch = vgpu_batch_open(mine->state);
    CHECK(vgpu_timing_begin(mine->state, mine->stream, false, &turn, 1));
    vgpu_thread_stream_allow(mine, key_of(class), ns);
    return batch;
}

static void is_told(struct vgpu_thread_stream *mine, const struct vgpu_batch *batch, uint64_t count, uint64_t ns, uint64_t over, uint64_t key) {
    vgpu_thread_stream_settle(mine, &turn, 1);
    CHECK(batch->launches == count && batch->expected == ns && batch->over == over && batch->key == key);
    CHECK(launches(mine, 0, 1, 1) == 0); // no more without a new allowance
    vgpu_thread_stream_settle(mine, &turn, 1);
    CHECK(batch->launches == count && batch->expected == ns);
}

// Of one class: as many as are allowed, for whatever they take.
static void of_one_class(void) {
    struct vgpu_thread_stream *mine = open_stream(0);
    static const struct { uint64_t ns, worst; } classes[] = {
        {0, 0}, {1, 1}, {0, VGPU_BATCH_NS}, {1, VGPU_SMALLEST_STEP}, {VGPU_SMALLEST_STEP, VGPU_SMALLEST_STEP},
        {4000, 5000}, {100000, 120000}, {VGPU_BATCH_NS, VGPU_BATCH_NS}};
    for (unsigned class = 0; class < sizeof classes / sizeof classes[0]; class++) {
        uint64_t ns = classes[class].ns, worst = classes[class].worst, step = worst < VGPU_SMALLEST_STEP ? VGPU_SMALLEST_STEP : worst;
        takes(mine, key_of(class), ns, worst);
        for (uint64_t allowed = 1; allowed <= VGPU_BATCH_NS; allowed += allowed < 10 ? 1 : VGPU_BATCH_NS / 10 - 1) {
            const struct vgpu_batch *batch = begin(mine, class, allowed);
            uint64_t count = allowed / step;
            CHECK(launches(mine, class, 1, 1000) == count);
            is_told(mine, batch, count, count * ns, count * (worst - ns), count != 0 ? key_of(class) : 0);
        }
    }
    takes(mine, key_of(100), VGPU_BATCH_NS, VGPU_BATCH_NS + 1); // longer than any allowance
    begin(mine, 100, VGPU_BATCH_NS);
    CHECK(launches(mine, 100, 1, 1) == 0);
}

// Of many classes, all of which are known to the thread at the same time.
static void of_many_classes(void) {
    struct vgpu_thread_stream *mine = open_stream(1);
    for (unsigned class = 0; class < CLASSES; class++)
        takes(mine, key_of(class), 1000 + class, 2000 + 2 * class);
    for (unsigned class = 0; class < CLASSES; class++)
        CHECK(vgpu_launch_class_of(vgpu_launch_class_name(mine, key_of(class))) != NULL);
    for (unsigned class = 0; class + 50 <= CLASSES; class += 50) {
        uint64_t ns = 0, worst = 0;
        for (unsigned i = 0; i < 50; i++) {
            ns += 1000 + class + i;
            worst += 2000 + 2 * (class + i);
        }
        const struct vgpu_batch *batch = begin(mine, class, VGPU_BATCH_NS);
        CHECK(launches(mine, class, 50, 50) == 50);
        is_told(mine, batch, 50, ns, worst - ns, 0);
        batch = begin(mine, class, worst);
        CHECK(launches(mine, class, 50, 1000) == 50);
        is_told(mine, batch, 50, ns, worst - ns, 0);
        batch = begin(mine, class, VGPU_BATCH_NS);
        CHECK(launches(mine, class + 1, 1, 2) == 2); // none of the class that it was given for
        is_told(mine, batch, 2, 2 * (1001 + class), 2 * (1001 + class), 0);
    }
}

// A price that changes counts from then on, and other thread streams' classes are theirs.
static void what_changes(void) {
    struct vgpu_thread_stream *mine = open_stream(2), *other = open_stream(3);
    takes(mine, key_of(1), 3000, 4000);
    takes(other, key_of(1), 5000, 6000);
    const struct vgpu_batch *batch = begin(mine, 1, 100000);
    const struct vgpu_batch *others = begin(other, 1, 100000);
    CHECK(launches(mine, 1, 1, 3) == 3 && launches(other, 1, 1, 2) == 2);
    takes(mine, key_of(1), 7000, 8000);
    CHECK(launches(mine, 1, 1, 1) == 1);
    is_told(mine, batch, 4, 3 * 3000 + 7000, 4 * 1000, key_of(1));
    is_told(other, others, 2, 10000, 2000, key_of(1));
}

// Where no event can be recorded for want of memory.
static void what_is_not_measured(void) {
    struct vgpu_thread_stream *mine = open_stream(0);
    struct vgpu_launch launch;
    uint64_t launches = vgpu_load(&process.region.counters->header.device[0].launches);
    takes(mine, key_of(1), 3000, 4000);
    recorded = CU_OUT_OF_MEMORY;
    CHECK(vgpu_launch_begin(&launch, key_of(1001), 0, mine->stream, false) == CU_OUT_OF_MEMORY);
    CHECK(vgpu_load(&process.region.counters->header.device[0].launches) == launches);
    CHECK(vgpu_launch_begin(&launch, key_of(1), 0, mine->stream, false) == CU_OK); // what it costs is known
    vgpu_launch_end(&launch, CU_OK);
    CHECK(vgpu_load(&process.region.counters->header.device[0].launches) == launches + 1);
    recorded = CU_INVALID_VALUE; // is the driver's to say of the launch
    CHECK(vgpu_launch_begin(&launch, key_of(1001), 0, mine->stream, false) == CU_OK);
    vgpu_launch_end(&launch, CU_INVALID_VALUE);
    recorded = CU_OK;
    CHECK(vgpu_launch_begin(&launch, key_of(1001), 0, mine->stream, false) == CU_OK);
    vgpu_launch_end(&launch, CU_OK);
    CHECK(mine->state->pending == 1);
}

// A launch that fails leaves no batch behind in which the next one would be measured: how long
// the program does something else in between isn't the device's.
static void what_fails(void) {
    struct vgpu_thread_stream *mine = open_stream(1);
    const struct vgpu_ctx_state *ctx_state = mine->state->ctx_state;
    struct vgpu_launch launch;
    takes(mine, key_of(1), 3000, 4000);
    vgpu_timing_drop(mine->state);
    unsigned under_way = ctx_state->under_way;
    for (unsigned class = 1; class <= 1002; class += 1001) { // one that is known, one that isn't
        CHECK(vgpu_launch_begin(&launch, key_of(class), 0, mine->stream, false) == CU_OK);
        CHECK(mine->state->open && ctx_state->under_way == under_way + 1);
        vgpu_launch_end(&launch, CU_INVALID_VALUE);
        CHECK(!mine->state->open && mine->state->pending == 0 && ctx_state->under_way == under_way);
    }
}

int main(int argc, char **argv) {
    STAND_IN(cuEventCreate, create_event);
    STAND_IN(cuEventRecord, record);
    STAND_IN(cuEventQuery, query);
    current = (cu_ctx)(void *)a_context;
    attach(argc >= 2 ? argv[1] : NULL, 0, 30);

    of_one_class();
    of_many_classes();
    what_changes();
    what_is_not_measured();
    what_fails();
    return 0;
}
