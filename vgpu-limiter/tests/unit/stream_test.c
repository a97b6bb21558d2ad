// SPDX-License-Identifier: Apache-2.0
//
// stream_test COUNTERS: streams that end after a few launches are charged what these take,
// also where the first few of their class were measured too long, as the process was stopped
// meanwhile, and where they end before that is through; and nothing is recorded into one that
// ends while it may be captured; on a device with a clock of its own, which goes on by what the
// test does.

#include "driver.h"

#include <time.h>

#define LAUNCHES 4        // of a stream
#define TAKES_NS UINT64_C(20000)
#define CALL_NS UINT64_C(1000)   // the call of a launch
#define STOPPED_NS UINT64_C(200000)

static char a_context[16];
static char streams[4][1024] __attribute__((aligned(1024))); // whose thread streams differ
static uint64_t now = UINT64_C(1) << 50, idle;               // and when the device is through
static uint64_t through[4];                                  // and each of the streams
static int records;                                          // of events

// In place of the C library's.
int clock_gettime(clockid_t clock, struct timespec *t) {
    (void)clock;
    now += 50;
    *t = (struct timespec){.tv_sec = (time_t)(now / 1000000000), .tv_nsec = (long)(now % 1000000000)};
    return 0;
}
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *t, struct timespec *left) {
    (void)clock;
    (void)flags;
    (void)left;
    now += (uint64_t)t->tv_sec * 1000000000 + (uint64_t)t->tv_nsec;
    return 0;
}

static cu_stream stream_of(int i) { return (cu_stream)(void *)(streams[i] + 16 * i); }
static int number_of(cu_stream stream) { return (int)(((char *)(void *)stream - streams[0]) / 1024); }

static cu_result push(cu_ctx ctx) { return ctx == (cu_ctx)(void *)a_context ? CU_OK : CU_INVALID_VALUE; }
static cu_result create_event(cu_event *event, unsigned flags) {
    *event = calloc(1, sizeof(uint64_t));
    return flags == 0 ? CU_OK : CU_INVALID_VALUE;
}
static cu_result destroy_event(cu_event event) {
    free(event);
    return CU_OK;
}
static uint64_t *moment_of(cu_event event) { return (uint64_t *)(void *)event; }
static cu_result record(cu_event event, cu_stream stream) {
    uint64_t end = through[number_of(stream)];
    records++;
    *moment_of(event) = end > now ? end : now;
    return CU_OK;
}
static cu_result query(cu_event event) { return *moment_of(event) <= now ? CU_OK : CU_NOT_READY; }
static cu_result elapsed(float *ms, cu_event from, cu_event to) {
    *ms = (float)((double)(int64_t)(*moment_of(to) - *moment_of(from)) / 1e6);
    return CU_OK;
}

void vgpu_test_step(void) {}

static struct vgpu_ctx_state *volatile kept; // where the sanitizer looks for what has been lost

static void launch_on(int i, uint64_t key, uint64_t stopped) {
    struct vgpu_launch launch = {0};
    bool paid = vgpu_launch_paid(key, stream_of(i), false);
    CHECK(paid || vgpu_launch_begin(&launch, key, 0, stream_of(i), false) == CU_OK);
    now += CALL_NS + stopped;
    idle = (idle > now ? idle : now) + TAKES_NS;
    through[i] = idle;
    if (!paid)
        vgpu_launch_end(&launch, CU_OK);
    kept = vgpu_thread_stream_of(stream_of(i))->state->ctx_state;
}

// So many streams, as many at a time, end after their launches. Returns how much is charged
// for each launch. waits: until they are through.
static uint64_t streams_come_and_go(uint64_t key, int count, int at_once, uint64_t stopped, bool waits) {
    const uint64_t *busy = &process.region.counters->header.device[0].busy_ns;
    uint64_t before = vgpu_load(busy);
    for (int i = 0; i < count; i += at_once) {
        for (int n = 0; n < LAUNCHES; n++)
            for (int s = 0; s < at_once; s++)
                launch_on(s, key, stopped);
        if (waits)
            now = idle > now ? idle : now;
        for (int s = 0; s < at_once; s++) {
            vgpu_forget_stream(&process, stream_of(s));
            through[s] = 0; // the next one is another
        }
    }
    return (vgpu_load(busy) - before) / (uint64_t)(count * LAUNCHES);
}

int main(int argc, char **argv) {
    STAND_IN(cuCtxPushCurrent_v2, push);
    STAND_IN(cuCtxPopCurrent_v2, get_current);
    STAND_IN(cuEventCreate, create_event);
    STAND_IN(cuEventDestroy_v2, destroy_event);
    STAND_IN(cuEventRecord, record);
    STAND_IN(cuEventQuery, query);
    STAND_IN(cuEventElapsedTime, elapsed);
    current = (cu_ctx)(void *)a_context;
    attach(argc >= 2 ? argv[1] : NULL, 0, 90);

    for (int at_once = 1; at_once <= 4; at_once *= 2) {
        uint64_t key = 1001 + 2 * (uint64_t)at_once;
        CHECK(streams_come_and_go(key, 2, at_once, STOPPED_NS, true) > 5 * TAKES_NS);
        streams_come_and_go(key, 100, at_once, 0, true);
        uint64_t ns = streams_come_and_go(key, 1000, at_once, 0, true);
        CHECK(ns > TAKES_NS * 9 / 10 && ns < TAKES_NS * 11 / 10);
    }
    for (int at_once = 1; at_once <= 2; at_once++) {
        uint64_t ns = streams_come_and_go(2001 + 2 * (uint64_t)at_once, 1000, at_once, 0, false);
        CHECK(ns > TAKES_NS * 9 / 10 && ns < TAKES_NS * 11 / 10);
    }
    for (int captures = 0; captures <= 1; captures++) {
        for (int n = 0; n < 100 && (n == 0 || !vgpu_thread_stream_of(stream_of(0))->state->open); n++)
            launch_on(0, 2003, 0);
        CHECK(vgpu_thread_stream_of(stream_of(0))->state->open);
        atomic_store(&process.launches.captures, captures);
        int before = records;
        vgpu_forget_stream(&process, stream_of(0));
        CHECK(records == before + 1 - captures);
    }
    return 0;
}
