// SPDX-License-Identifier: Apache-2.0
//
// Memory made by cuMemCreate that only an exported descriptor keeps: the driver frees
// it when that is closed in the last process that has it.
//
// Invariants:
//   1. At its export a descriptor gets a read lock on one byte of its file, far away
//      and by its own number. The kernel keeps such a lock (F_OFD_SETLK) with the
//      open file, whichever processes have it, and drops it when the last of them
//      has closed it or died. Whoever opens the file anew is told whether the lock is
//      there. Nobody ever waits for it.
//      What it does to others: nobody may lock the whole file for writing meanwhile, and
//      as with every descriptor of a file that is closed, the process loses the locks of
//      the older kind (F_SETLK) that it has on this one. Nobody is known to do either
//      with a device file of the driver's.
//   2. Where that can't be told at the export, nothing is kept for the descriptor;
//      where it can't be told later, the memory stays charged.

#include "vmm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct vgpu_passed {
    uint64_t byte;
    dev_t device;
    ino_t inode;
    struct vgpu_passed *next; // in another file
    char path[];
};

// Not fstat, whose symbol is younger than the oldest libc that is supported.
static bool status(int fd, struct stat *out) { return syscall(SYS_fstat, fd, out) == 0; }

enum answer { CLOSED, OPEN, UNKNOWN };

static enum answer ask(const struct vgpu_passed *passed) {
    struct stat now;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)passed->byte, .l_len = 1};
    int fd = open(passed->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return UNKNOWN;
    bool told = status(fd, &now) && now.st_dev == passed->device && now.st_ino == passed->inode &&
                fcntl(fd, F_OFD_GETLK, &lock) == 0;
    close(fd);
    if (!told)
        return UNKNOWN;
    return lock.l_type == F_UNLCK ? CLOSED : OPEN;
}

void vgpu_passed_add(struct vgpu_record *record, int fd) {
    char link[32], path[256];
    struct stat file;
    struct timespec now;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0 || n == (ssize_t)sizeof path - 1 || !status(fd, &file))
        return;
    path[n] = 0;
    struct vgpu_passed *passed = record->passed;
    while (passed != NULL && (passed->device != file.st_dev || passed->inode != file.st_ino))
        passed = passed->next;
    bool made = passed == NULL;
    if (made) {
        if ((passed = calloc(1, sizeof *passed + (size_t)n + 1)) == NULL)
            return;
        clock_gettime(CLOCK_MONOTONIC, &now);
        uint64_t named[] = {(uintptr_t)record, (uint64_t)getpid(), (uint64_t)now.tv_sec, (uint64_t)now.tv_nsec};
        passed->byte = (vgpu_share_id(named, sizeof named) >> 2) | UINT64_C(1) << 40; // nobody's file is so long
        passed->device = file.st_dev;
        passed->inode = file.st_ino;
        memcpy(passed->path, path, (size_t)n);
    }
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t)passed->byte, .l_len = 1};
    bool good = fcntl(fd, F_OFD_SETLK, &lock) == 0 && ask(passed) == OPEN;
    if (made && good) {
        passed->next = record->passed;
        record->passed = passed;
    } else if (made) {
        free(passed);
    }
}

bool vgpu_passed_lives(const struct vgpu_record *record) {
    for (const struct vgpu_passed *passed = record->passed; passed != NULL; passed = passed->next)
        if (ask(passed) != CLOSED)
            return true;
    return false;
}

void vgpu_passed_free(struct vgpu_record *record) {
    for (struct vgpu_passed *next; record->passed != NULL; record->passed = next) {
        next = record->passed->next;
        free(record->passed);
    }
}
