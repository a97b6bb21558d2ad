// SPDX-License-Identifier: Apache-2.0
//
// libclock.so stands in for the clock in programs that are preloaded with it, so
// that how device time is shared out can be measured on a machine that is busy, in
// the same way each time. All processes have one clock, in the file that CLOCK names
// (keeper.c has its other side, for ../clock_test.go). One thread of all of them runs at a time:
// until it sleeps, or looks at the clock from the program itself when another one's
// sleep is over. Then the clock goes on to the end of the first sleep. A look at it
// takes 50 ns, a sleep as much longer as Linux makes it, and CLOCK_LATE more at random.
//
// Threads take part from the program's first look at the clock on, until they end.

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define THREADS 64
#define LOOK_NS 50
#define SLACK_NS 55000 // of a sleep that asks for no better
#define WAKE_NS 5000
#define NEVER UINT64_MAX

struct shared {
    _Atomic uint64_t now;
    _Atomic uint32_t threads, pad; // that ever took part; the first is the other side
    struct {
        _Atomic uint64_t until; // when it goes on
        _Atomic uint32_t go, pad;
    } thread[THREADS];
};

static struct shared *shared;
static uint64_t late;
static _Bool watches; // reads the clock only
static pthread_key_t ending;
static _Thread_local int self = -1;
static _Thread_local uint64_t random_state;

static long futex(_Atomic uint32_t *word, int op, uint32_t value) {
    return syscall(SYS_futex, word, op, value, NULL, NULL, 0);
}

static void await_go(int i) {
    while (atomic_exchange(&shared->thread[i].go, 0) == 0)
        futex(&shared->thread[i].go, FUTEX_WAIT, 0);
    uint64_t until = atomic_load(&shared->thread[i].until);
    if (until != NEVER && until > atomic_load(&shared->now))
        atomic_store(&shared->now, until);
}

// The one whose sleep ends first.
static int first(void) {
    int best = 0;
    uint32_t n = atomic_load(&shared->threads);
    for (uint32_t i = 1; i < n && i < THREADS; i++)
        if (atomic_load(&shared->thread[i].until) < atomic_load(&shared->thread[best].until))
            best = (int)i;
    return best;
}

static void wake(int i) {
    atomic_store(&shared->thread[i].go, 1);
    futex(&shared->thread[i].go, FUTEX_WAKE, 1);
}

// Goes on at `until`.
static void pause_until(uint64_t until) {
    atomic_store(&shared->thread[self].until, until);
    int next = first();
    if (next != self)
        wake(next);
    else
        atomic_store(&shared->thread[self].go, 1);
    await_go(self);
}

static void end(void *argument) {
    (void)argument;
    atomic_store(&shared->thread[self].until, NEVER);
    wake(first());
    self = -1;
}

// The program's first thread ends with it.
__attribute__((destructor)) static void finish(void) {
    if (self >= 0)
        end(NULL);
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("CLOCK"), *lateness = getenv("CLOCK_LATE");
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = fd >= 0 ? mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    if (map == MAP_FAILED || pthread_key_create(&ending, end) != 0)
        abort();
    late = lateness != NULL ? strtoull(lateness, NULL, 10) : 0;
    watches = getenv("CLOCK_WATCH") != NULL;
    shared = map;
}

static void take_part(void) {
    self = (int)atomic_fetch_add(&shared->threads, 1);
    if (self >= THREADS)
        abort();
    random_state = (uint64_t)self;
    pthread_setspecific(ending, shared);
    await_go(self);
}

static uint64_t random_ns(uint64_t below) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return below == 0 ? 0 : (random_state >> 20) % below;
}

static _Bool from_program(const void *caller) {
    intptr_t from = (intptr_t)caller - (intptr_t)getauxval(AT_ENTRY);
    return from > -0x100000 && from < 0x100000;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    if (clock != CLOCK_MONOTONIC && clock != CLOCK_MONOTONIC_COARSE)
        return (int)syscall(SYS_clock_gettime, clock, t);
    if (!watches && from_program(__builtin_return_address(0))) {
        if (self < 0)
            take_part();
        int next = first();
        if (next != self && atomic_load(&shared->thread[next].until) <= atomic_load(&shared->now))
            pause_until(atomic_load(&shared->now));
    }
    uint64_t now = self < 0 ? atomic_load(&shared->now) : atomic_fetch_add(&shared->now, LOOK_NS) + LOOK_NS;
    *t = (struct timespec){.tv_sec = (time_t)(now / 1000000000), .tv_nsec = (long)(now % 1000000000)};
    return 0;
}

static int sleep_for(clockid_t clock, int flags, const struct timespec *t, struct timespec *left) {
    if (self < 0)
        return (int)syscall(SYS_clock_nanosleep, clock, flags, t, left) < 0 ? errno : 0;
    uint64_t ns = (uint64_t)t->tv_sec * 1000000000 + (uint64_t)t->tv_nsec, now = atomic_load(&shared->now);
    uint64_t until = (flags & TIMER_ABSTIME) != 0 ? (ns > now ? ns : now) + WAKE_NS : now + ns + SLACK_NS + WAKE_NS;
    until += random_ns(WAKE_NS * 2);
    if (late != 0 && random_ns(8) == 0) // now and then another thread has the core
        until += random_ns(late);
    pause_until(until);
    return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *t, struct timespec *left) {
    return sleep_for(clock, flags, t, left);
}

int nanosleep(const struct timespec *t, struct timespec *left) { return sleep_for(CLOCK_MONOTONIC, 0, t, left); }
