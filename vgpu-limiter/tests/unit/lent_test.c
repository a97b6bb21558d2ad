// SPDX-License-Identifier: Apache-2.0
//
// lent_test COUNTERS LIMITS PACE: an owner whose memory is lent to an idle slice. The clock is the
// test's, and moves only while a charge sleeps: then the node side has its turn.

#include "check.h"
#include "memory/audit.h"
#include "memory/lent.h"

#include <sys/mman.h>
#include <time.h>

#define LIMIT UINT64_C(1000) // promised to the owner, which is all of the device
#define MS UINT64_C(1000000)

static struct vgpu_process process;
static struct vgpu_pace *pace;
static struct vgpu_counters_device *counters;
static uint64_t clock_ns = 1000 * MS, random_state = 1;
static void (*node)(void); // has a turn in each sleep

void vgpu_test_step(void) {}

int clock_gettime(clockid_t id, struct timespec *t) {
    (void)id;
    *t = (struct timespec){.tv_sec = (time_t)(clock_ns / 1000000000), .tv_nsec = (long)(clock_ns % 1000000000)};
    return 0;
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *t, struct timespec *left) {
    (void)id, (void)left;
    CHECK(flags == 0 && t->tv_sec == 0);
    clock_ns += (uint64_t)t->tv_nsec;
    node();
    return 0;
}

static uint64_t draw(uint64_t below) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (random_state >> 33) % below;
}

static uint64_t charged(void) { return vgpu_charged(&process, 0); }

// SetReady of package layout, which nothing runs beside; it may be infeasible.
static bool set_ready(uint64_t bytes) {
    if (bytes != 0 && charged() > bytes)
        return false;
    vgpu_store(&pace->device[0].ready_bytes, bytes);
    vgpu_add(&counters->memory, VGPU_HIGH_ONE);
    vgpu_store(&counters->memory, vgpu_load(&counters->memory) & ~VGPU_SECOND_LIMIT); // where the count overflows
    return true;
}

static uint64_t wanted;
static int looks;

static void away(void) {
    wanted = vgpu_load(&counters->wanted);
    looks++;
}

static void when_the_agent_is_away(void) {
    node = away;
    CHECK(set_ready(400));
    CHECK(vgpu_charge(&process, 0, 400) && looks == 0); // what is ready costs no wait
    uint64_t began = clock_ns;
    CHECK(vgpu_charge(&process, 0, 100));
    CHECK(clock_ns - began == VGPU_LENT_NS && wanted == 500 && charged() == 500);
    CHECK(vgpu_load(&counters->wanted) == 0);
    began = clock_ns;
    CHECK(vgpu_charge(&process, 0, 500) && clock_ns == began); // it has waited in vain already
    CHECK(!vgpu_charge(&process, 0, 1) && clock_ns == began && counters->memory_refusals == 1);
    vgpu_uncharge(&process, 0, 700);
    CHECK(set_ready(400)); // once more: it is lent again
    CHECK(!vgpu_charge(&process, 0, LIMIT + 1) && !vgpu_charge(&process, 0, 701) && clock_ns == began);
    CHECK(vgpu_charge_taken(&process, 0, 200) && clock_ns == began); // the driver has given it
    CHECK(vgpu_charge(&process, 0, 500) && clock_ns == began + VGPU_LENT_NS && charged() == LIMIT);
    vgpu_uncharge(&process, 0, LIMIT);
    CHECK(set_ready(0) && vgpu_charge(&process, 0, LIMIT) && clock_ns == began + VGPU_LENT_NS);
    vgpu_uncharge(&process, 0, LIMIT);
}

// An agent that works: it sees what is wanted within 100 ms, and the idle slice's processes are
// gone some time later.
static uint64_t idle, ends_at, looks_at;

static void working(void) {
    if (ends_at != 0 && clock_ns >= ends_at) {
        idle = ends_at = 0;
        CHECK(set_ready(0));
    }
    if (clock_ns < looks_at)
        return;
    looks_at = clock_ns + 100 * MS;
    uint64_t ready = vgpu_load(&pace->device[0].ready_bytes);
    if (ready != 0 && ends_at == 0 && (vgpu_load(&counters->wanted) > ready || charged() + 20 > ready))
        ends_at = clock_ns + 1 + draw(1500) * MS;
}

// Whatever the owner charges within its limit succeeds, and at no time is more charged than the
// device has.
static void when_the_agent_works(void) {
    uint64_t held[8] = {0};
    long waits = 0, lent = 0, refused = 0;
    node = working;
    for (int i = 0; i < 200000; i++) {
        uint64_t *mine = &held[draw(8)], bytes = draw(300) + 1, began = clock_ns;
        uint64_t ready = charged() + draw(LIMIT);
        if (idle == 0 && draw(4) == 0 && ready > 0 && ready < LIMIT && set_ready(ready)) {
            idle = LIMIT - ready; // lowered first
            lent++;
        }
        vgpu_uncharge(&process, 0, *mine);
        *mine = 0;
        bool within = charged() + bytes <= LIMIT, granted = vgpu_charge(&process, 0, bytes);
        CHECK(granted == within && clock_ns - began <= VGPU_LENT_NS);
        CHECK(charged() + idle <= LIMIT); // else the driver would have refused it
        *mine = granted ? bytes : 0;
        refused += !granted;
        waits += clock_ns != began;
        clock_ns += draw(300) * MS;
        working();
    }
    CHECK(lent > 1000 && waits > 1000 && refused > 1000);
}

int main(int argc, char **argv) {
    CHECK(argc >= 4);
    int fd = open(argv[3], O_RDWR);
    pace = mmap(NULL, sizeof *pace, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && pace != MAP_FAILED);
    CHECK(vgpu_region_join(argv[1], 1, &process.region) == NULL);
    process.pace = vgpu_pace_map(argv[3], 1);
    CHECK(process.pace != NULL);
    process.limits.device_count = 1;
    process.limits.device[0].memory_bytes = LIMIT;
    counters = &process.region.counters->header.device[0];
    when_the_agent_is_away();
    when_the_agent_works();
    return 0;
}
