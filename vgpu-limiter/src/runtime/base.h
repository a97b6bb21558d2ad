// SPDX-License-Identifier: Apache-2.0
//
// What every file of the library uses: the paths, the log line, the time, the lock.

#ifndef VGPU_BASE_H
#define VGPU_BASE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Fixed when the library is built: nothing in the environment of a process can
// change where its limits come from. Tests build a library with other paths.
#ifndef VGPU_LIMITS_PATH
#define VGPU_LIMITS_PATH "/usr/local/vernier/limits"
#endif
#ifndef VGPU_COUNTERS_PATH
#define VGPU_COUNTERS_PATH "/usr/local/vernier/counters"
#endif

#ifndef VGPU_PACE_PATH
#define VGPU_PACE_PATH "/usr/local/vernier/pace"
#endif

#define vgpu_likely(x) __builtin_expect(!!(x), 1)
#define vgpu_unlikely(x) __builtin_expect(!!(x), 0)

// Writes "vernier: ..." to stderr, the first time that the process calls it
// with this flag. A refused program thus says why once, and no log fills.
void vgpu_log_once(atomic_flag *said, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define VGPU_LOG_ONCE(...)                           \
    do {                                             \
        static atomic_flag vgpu_said = ATOMIC_FLAG_INIT; \
        vgpu_log_once(&vgpu_said, __VA_ARGS__);      \
    } while (0)

// The time on the monotonic clock, in nanoseconds.
uint64_t vgpu_now(void);

// Sleeps for so long, at most a second, and returns the time then, no less than `now`.
uint64_t vgpu_pause(uint64_t now, uint64_t ns);

// Descriptors that are opened between the two are none of standard input, output and
// error, where a program that was started without these would write its output.
struct vgpu_low {
    int fd[3], count;
};
void vgpu_low_hold(struct vgpu_low *low);
void vgpu_low_free(struct vgpu_low *low);

// Between the two the thread can't be cancelled (pthread_cancel): what it holds, nobody
// would ever free.
static inline int vgpu_cancel_hold(void) {
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}
static inline void vgpu_cancel_free(int before) { pthread_setcancelstate(before, &(int){0}); }

// A lock among threads of one process: never in shared memory. A zeroed lock is
// free. Its owner holds it for short computations, and across a call of the
// driver only where the lock's user says so: the driver never calls back. It can't be
// cancelled until then; of several locks, the last one taken is freed first.
struct vgpu_lock {
    atomic_int state; // 0 free, 1 held, 2 held and waited for
    int cancel;       // whether its owner may be cancelled afterwards
};

// Waits; if nobody may wake it (`hot`), no longer than a millisecond without a look.
void vgpu_lock_wait(struct vgpu_lock *lock, bool hot);
void vgpu_lock_wake(struct vgpu_lock *lock);

static inline bool vgpu_lock_try(struct vgpu_lock *lock) {
    int free_state = 0;
    return vgpu_likely(atomic_compare_exchange_strong_explicit(&lock->state, &free_state, 1, memory_order_acquire,
                                                               memory_order_relaxed));
}

static inline void vgpu_lock(struct vgpu_lock *lock) {
    int cancel = vgpu_cancel_hold();
    if (!vgpu_lock_try(lock))
        vgpu_lock_wait(lock, false);
    lock->cancel = cancel;
}

static inline void vgpu_lock_free(struct vgpu_lock *lock) {
    if (vgpu_unlikely(atomic_exchange_explicit(&lock->state, 0, memory_order_release) == 2))
        vgpu_lock_wake(lock);
}

static inline void vgpu_unlock(struct vgpu_lock *lock) {
    int cancel = lock->cancel;
    vgpu_lock_free(lock);
    vgpu_cancel_free(cancel);
}

// For a lock that only these two are used with: it is freed without an atomic
// exchange, which would be half of its cost, and is held only where nothing can be
// cancelled anyway: but for the driver's, system calls are made under it only by the
// audit and the log, which see to that themselves. A thread that begins to wait between the two
// steps isn't woken, and looks again after a millisecond.
static inline void vgpu_lock_hot(struct vgpu_lock *lock) {
    if (!vgpu_lock_try(lock))
        vgpu_lock_wait(lock, true);
}

static inline void vgpu_unlock_hot(struct vgpu_lock *lock) {
    if (vgpu_likely(atomic_load_explicit(&lock->state, memory_order_relaxed) == 1))
        atomic_store_explicit(&lock->state, 0, memory_order_release);
    else
        vgpu_lock_free(lock);
}

// Words of the shared counters. Plain uint64_t in the layout, atomic here.
static inline uint64_t vgpu_load(const uint64_t *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
static inline void vgpu_store(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}
static inline uint64_t vgpu_add(uint64_t *word, uint64_t delta) {
    return __atomic_fetch_add(word, delta, __ATOMIC_ACQ_REL);
}
static inline bool vgpu_cas(uint64_t *word, uint64_t *seen, uint64_t value) {
    return __atomic_compare_exchange_n(word, seen, value, true, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

// FNV-1a, from VGPU_HASH_START or from a hash of what comes before.
#define VGPU_HASH_START UINT64_C(0xcbf29ce484222325)
static inline uint64_t vgpu_hash(uint64_t hash, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

// Between two steps that other processes can see half done. Nothing here; the
// test makes it a place to be interrupted and killed at.
#ifdef VGPU_TEST_STEP
void VGPU_TEST_STEP(void);
#else
#define VGPU_TEST_STEP() ((void)0)
#endif

#endif
