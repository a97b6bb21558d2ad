// SPDX-License-Identifier: Apache-2.0
//
// resize_test COUNTERS LIMITS PACE [INTERLEAVINGS]: threads that charge, uncharge and audit one
// device, and a node side that changes its limit or what is ready of it, each stopped at any of
// its steps while the others go on. At every step what is charged is within both; at the end it
// is exactly what is held. The node side is package layout's Resize and SetReady, step by step.
//
// The threads are contexts of one, so that which goes on is the test's choice. Then real
// ones do the same, for the thread sanitizer's sake.

#include "check.h"
#include "memory/audit.h"

#include <pthread.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#define CHARGERS 3
#define TASKS (CHARGERS + 1)
#define CALLS 4 // of each task in one interleaving
#define FILE_LIMIT UINT64_C(64)
#define MOST 96 // of any limit

#ifdef __SANITIZE_THREAD__
#define INTERLEAVINGS 0 // it doesn't know contexts
#elif defined __SANITIZE_ADDRESS__
#define INTERLEAVINGS 20000
#else
#define INTERLEAVINGS 1000000
#endif

static struct vgpu_process process;
static struct vgpu_pace *pace; // writable, as the node side has it
static uint64_t *total;
static uint64_t random_state = 1;
static long refusals, grants, resizes, infeasible, lends;

static uint64_t draw(uint64_t *state, uint64_t below) {
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (*state >> 33) % below;
}

static uint64_t memory_of(uint64_t limit) {
    return (limit & VGPU_BYTES_MASK) != 0 ? limit & VGPU_BYTES_MASK : FILE_LIMIT;
}

static uint64_t in_force(uint64_t word) { return memory_of(vgpu_load(&pace->device[0].limit[word >> 63])); }

// Between the steps.
static void step(void);
void vgpu_test_step(void) { step(); }

// Resize of package layout.
static bool resize(uint64_t limit) {
    uint64_t *limits = pace->device[0].limit;
    uint64_t first = memory_of(vgpu_load(&limits[0])), second = memory_of(vgpu_load(&limits[1]));
    uint64_t before = first > second ? first : second;
    uint64_t seen = vgpu_load(total);
    for (;;) {
        uint64_t which = seen >> 63;
        step();
        if (memory_of(limit) < before && (seen & VGPU_BYTES_MASK) > memory_of(limit)) {
            vgpu_store(&limits[!which], vgpu_load(&limits[which]));
            return false;
        }
        vgpu_store(&limits[!which], limit);
        step();
        uint64_t counted = (seen + VGPU_HIGH_ONE) & ~VGPU_SECOND_LIMIT;
        if (!vgpu_cas(total, &seen, counted | (~seen & VGPU_SECOND_LIMIT)))
            continue;
        step();
        vgpu_store(&limits[which], limit);
        return true;
    }
}

static uint64_t ready = UINT64_MAX; // in force

// SetReady of package layout; 0 for all.
static bool set_ready(uint64_t bytes) {
    uint64_t *word = &pace->device[0].ready_bytes, before = vgpu_load(word), seen;
    vgpu_store(word, bytes);
    if (bytes == 0 || bytes > ready)
        ready = bytes != 0 ? bytes : UINT64_MAX; // a charge may see it from now on
    do {
        step();
        seen = vgpu_load(total);
        if (bytes != 0 && (seen & VGPU_BYTES_MASK) > bytes) {
            vgpu_store(word, before);
            return false;
        }
        step();
    } while (!vgpu_cas(total, &seen, ((seen + VGPU_HIGH_ONE) & ~VGPU_SECOND_LIMIT) | (seen & VGPU_SECOND_LIMIT)));
    ready = bytes != 0 ? bytes : UINT64_MAX;
    return true;
}

static void call_resize(uint64_t *random) {
    if (draw(random, 2) == 0) {
        bool lent = set_ready(draw(random, 4) == 0 ? 0 : draw(random, MOST) + 1);
        lends += lent && ready != UINT64_MAX;
        return;
    }
    bool changed = resize(draw(random, 8) == 0 ? 0 : draw(random, MOST) + 1);
    resizes += changed;
    infeasible += !changed;
}

// Charges once more than it uncharges, or the reverse, by what it holds.
static void call_charge(uint64_t *random, uint64_t *held) {
    uint64_t bytes = draw(random, MOST / 3) + 1;
    if (*held != 0 && draw(random, 2) == 0) {
        vgpu_uncharge(&process, 0, *held);
        *held = 0;
    } else if (vgpu_charge_once(&process, 0, bytes)) {
        *held += bytes;
        grants++;
    } else {
        refusals++;
    }
}

// The contexts.

static jmp_buf scheduler, task[TASKS]; // without a system call for each step
static char stack[TASKS][64 << 10] __attribute__((aligned(16)));
static bool done[TASKS];
static int running = -1; // -1: not in a task
static int stop_at;      // the task's steps until it stops; < 0: at each
static uint64_t held[CHARGERS];
static int resizes_at_steps; // of an audit

static void step(void) {
    if (resizes_at_steps > 0 && resizes_at_steps-- > 0) {
        int left = resizes_at_steps;
        resizes_at_steps = 0;
        CHECK(resize(MOST));
        resizes_at_steps = left;
    }
    if (running < 0 || (stop_at >= 0 && stop_at-- != 0))
        return;
    if (_setjmp(task[running]) == 0)
        _longjmp(scheduler, 1);
}

// One interleaving after the other.
static void run_task(int index) {
    for (;;) {
        for (int i = 0; i < CALLS; i++) {
            if (index == CHARGERS)
                call_resize(&random_state);
            else
                call_charge(&random_state, &held[index]);
            step();
        }
        done[index] = true;
        stop_at = 0;
        step();
    }
}

static void go_on(int index) {
    running = index;
    if (_setjmp(scheduler) == 0)
        _longjmp(task[index], 1);
    running = -1;
    uint64_t word = vgpu_load(total);
    CHECK((word & VGPU_BYTES_MASK) <= in_force(word) && (word & VGPU_BYTES_MASK) <= ready);
}

static void begin_task(int index) {
    stop_at = 0;
    step();
    run_task(index);
}

static void begin_tasks(void) {
    static ucontext_t context, unused;
    for (volatile int i = 0; i < TASKS; i++) {
        CHECK(getcontext(&context) == 0);
        context.uc_stack.ss_sp = stack[i];
        context.uc_stack.ss_size = sizeof stack[i];
        makecontext(&context, (void (*)(void))begin_task, 1, i);
        running = i;
        if (_setjmp(scheduler) == 0)
            swapcontext(&unused, &context);
    }
}

static void prepare(int stop) {
    stop_at = stop;
    for (int i = 0; i < TASKS; i++)
        done[i] = false;
}

static void finish(void) {
    uint64_t sum = 0;
    for (int i = 0; i < TASKS; i++)
        while (!done[i]) {
            stop_at = -1;
            go_on(i);
        }
    for (int i = 0; i < CHARGERS; i++)
        sum += held[i];
    CHECK(vgpu_charged(&process, 0) == sum);
    CHECK(pace->device[0].limit[0] == pace->device[0].limit[1]);
}

static void interleave(long interleavings) {
    for (long n = 0; n < interleavings; n++) {
        prepare(-1);
        for (int left = TASKS; left > 0;) {
            int index = (int)draw(&random_state, TASKS);
            if (done[index])
                continue;
            stop_at = -1;
            go_on(index);
            left -= done[index];
        }
        finish();
    }
}

// A task is stopped for long at one of its steps, once at each, while the others make all of
// their calls.
static void stop_everywhere(void) {
    for (int round = 0; round < 2000; round++)
        for (int stopped = 0; stopped < TASKS; stopped++) {
            prepare(round % 20);
            go_on(stopped);
            for (int i = 0; i < TASKS; i++)
                while (i != stopped && !done[i]) {
                    stop_at = -1;
                    go_on(i);
                }
            finish();
        }
}

// Dead owners' bytes are taken off, also while limits change.
static void audits(void) {
    running = -1;
    for (int i = 0; i < CHARGERS; i++) {
        vgpu_uncharge(&process, 0, held[i]);
        held[i] = 0;
    }
    for (uint64_t n = 0; n < 40000; n++) { // beyond what the count of changes holds
        uint64_t second = n % 3 != 1 ? vgpu_load(total) & VGPU_SECOND_LIMIT : 0;
        vgpu_add(total, 1);
        resizes_at_steps = n % 3 == 1 ? (int)(n % 7) : 0;
        vgpu_audit(&process, false);
        resizes_at_steps = 0;
        CHECK(vgpu_charged(&process, 0) == 0);
        CHECK(n % 3 == 1 || (vgpu_load(total) & VGPU_SECOND_LIMIT) == second);
        if (n % 3 == 0)
            CHECK(resize(n % MOST + 1));
    }
}

// Real threads.

static atomic_bool over;

static void *charge_on(void *argument) {
    uint64_t mine = 0, random = (uint64_t)(uintptr_t)argument;
    while (!atomic_load(&over)) {
        uint64_t bytes = draw(&random, MOST / 3) + 1;
        if (mine != 0) {
            vgpu_uncharge(&process, 0, mine);
            mine = 0;
        } else if (vgpu_charge(&process, 0, bytes)) {
            mine = bytes;
        }
    }
    vgpu_uncharge(&process, 0, mine);
    return NULL;
}

static void *watch(void *unused) {
    while (!atomic_load(&over)) {
        uint64_t word = vgpu_load(total), limit = in_force(word);
        CHECK(vgpu_load(total) != word || (word & VGPU_BYTES_MASK) <= limit);
    }
    return unused;
}

static void real_threads(void) {
    pthread_t thread[TASKS];
    uint64_t random = 7;
    running = -1;
    CHECK(pthread_create(&thread[CHARGERS], NULL, watch, NULL) == 0);
    for (uintptr_t i = 0; i < CHARGERS; i++)
        CHECK(pthread_create(&thread[i], NULL, charge_on, (void *)(i + 1)) == 0);
    for (long changed = 0; changed < 2000;)
        changed += resize(draw(&random, MOST) + 1);
    atomic_store(&over, true);
    for (int i = 0; i < TASKS; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK(vgpu_charged(&process, 0) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc >= 4);
    int fd = open(argv[3], O_RDWR);
    pace = mmap(NULL, sizeof *pace, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && pace != MAP_FAILED && pace->resizes == 2);
    CHECK(vgpu_region_join(argv[1], 1, &process.region) == NULL);
    process.pace = vgpu_pace_map(argv[3], 1);
    CHECK(process.pace != NULL);
    process.limits.device_count = 1;
    process.limits.device[0].memory_bytes = FILE_LIMIT;
    total = &process.region.counters->header.device[0].memory;
    long interleavings = argc > 4 ? atol(argv[4]) : INTERLEAVINGS;
    if (interleavings > 0) {
        begin_tasks();
        interleave(interleavings);
        stop_everywhere();
        CHECK(grants > interleavings / 2 && refusals > 0 && resizes > interleavings / 4 && infeasible > 0 && lends > interleavings / 4);
        CHECK(set_ready(0));
    }
    audits();
    real_threads();
    return 0;
}
