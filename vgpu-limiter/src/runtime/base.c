// SPDX-License-Identifier: Apache-2.0
//
// The log line, the time, the low descriptors and the slow half of the lock.

#include "runtime/base.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t vgpu_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t vgpu_pause(uint64_t now, uint64_t ns) {
    struct timespec sleep = {.tv_nsec = (long)ns};
    int saved = errno;
    clock_nanosleep(CLOCK_MONOTONIC, 0, &sleep, NULL);
    errno = saved;
    uint64_t then = vgpu_now();
    return then > now ? then : now;
}

// Not where a write would block, nor where it would send a signal that ends the program:
// nobody reads (SIGPIPE), or the file may not become larger (SIGXFSZ).
static bool may_write(int fd) {
    struct pollfd out = {.fd = fd, .events = POLLOUT};
    struct stat file;
    struct rlimit most;
    if (poll(&out, 1, 0) != 1 || out.revents != POLLOUT)
        return false;
    // By their numbers: fstat's symbol is younger than the oldest libc that is supported, and
    // nothing here is to refer to what resource limits are changed by.
    if (syscall(SYS_getrlimit, RLIMIT_FSIZE, &most) != 0 || most.rlim_cur == RLIM_INFINITY ||
        syscall(SYS_fstat, fd, &file) != 0 || !S_ISREG(file.st_mode))
        return true;
    off_t at = lseek(fd, 0, SEEK_CUR);
    return (rlim_t)(at > file.st_size ? at : file.st_size) < most.rlim_cur;
}

void vgpu_log_once(atomic_flag *said, const char *format, ...) {
    if (atomic_flag_test_and_set(said))
        return;
    int saved = errno, cancel = vgpu_cancel_hold();
    char line[512] = "vernier: ";
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line + 9, sizeof line - 10, format, args);
    va_end(args);
    if (n >= 0) {
        size_t length = 9 + (n < (int)sizeof line - 11 ? (size_t)n : sizeof line - 11);
        line[length] = '\n';
        if (may_write(STDERR_FILENO) && write(STDERR_FILENO, line, length + 1) < 0) {
            // Nobody to tell.
        }
    }
    vgpu_cancel_free(cancel);
    errno = saved;
}

void vgpu_low_hold(struct vgpu_low *low) {
    low->count = 0;
    for (int fd = -1; fd < STDERR_FILENO; low->fd[low->count++] = fd)
        if ((fd = open("/", O_PATH | O_CLOEXEC)) < 0)
            return;
}

void vgpu_low_free(struct vgpu_low *low) {
    while (low->count > 0)
        close(low->fd[--low->count]);
}

void vgpu_lock_wait(struct vgpu_lock *lock, bool hot) {
    const struct timespec millisecond = {.tv_nsec = 1000000};
    while (atomic_exchange_explicit(&lock->state, 2, memory_order_acquire) != 0) {
        int saved = errno;
        syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, 2, hot ? &millisecond : NULL, NULL, 0);
        errno = saved;
    }
}

void vgpu_lock_wake(struct vgpu_lock *lock) {
    syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
