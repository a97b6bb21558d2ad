// SPDX-License-Identifier: Apache-2.0
//
// Memory made by cuMemCreate stays as long as a descriptor that it was exported to is
// open in any process, or under way in a socket.
//
// Invariants:
//   1. At its export a descriptor gets a read lock on one byte of its file, far away
//      and by the id of its record. The kernel keeps such a lock (F_OFD_SETLK) with the
//      open file, whichever processes have it, and drops it when the last of them has
//      closed it or died, just before the driver's release of it. A process that opens
//      the file again sees whether the lock is there. No process ever waits for it.
//      What it does to others: no process can lock the whole file for writing, and
//      as with every descriptor of a file that is closed, the process loses the locks of
//      the older kind (F_SETLK) that it has on this one. No program is known to do either
//      with a device file of the driver's.
//   2. Where that is unknown at the export, a descriptor counts for nothing; where it is
//      unknown later, as open.
//   3. The counters say how a file is opened, to processes that have none of its
//      descriptors. An entry belongs to a file once its key is set. Who sets the key
//      may die before the path is there: then the next one that has the file fills it
//      in. Two at a time write the same, or else nobody finds the file by it.

#include "memory/ipc_fd.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FAR (UINT64_C(1) << 40) // nobody's file is so long

// Which file it is; 0 if that is unknown. Not fstat, whose symbol is younger than
// the oldest libc that is supported.
static uint64_t key_of(int fd) {
    struct stat file;
    if (fd < 0 || syscall(SYS_fstat, fd, &file) != 0)
        return 0;
    return ((uint64_t)file.st_dev * UINT64_C(0x9e3779b97f4a7c15) ^ file.st_ino) | UINT64_C(1) << 63;
}

static int open_file(const char *path, uint64_t key) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0 && key_of(fd) != key) {
        close(fd);
        fd = -1;
    }
    return fd;
}

uint64_t vgpu_fd_file(struct vgpu_counters *counters, int fd) {
    char link[32], path[sizeof counters->header.file->path] = {0};
    uint64_t key = key_of(fd);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path);
    if (key == 0 || n <= 0 || n == (ssize_t)sizeof path)
        return 0;
    for (int i = 0; i < VGPU_FILES; i++) {
        struct vgpu_file *file = &counters->header.file[i];
        uint64_t seen = vgpu_load(&file->key);
        if (seen == key && vgpu_load(&file->good) != 0)
            return UINT64_C(1) << i;
        if (seen != 0 && seen != key)
            continue;
        int again = open_file(path, key);
        if (again < 0)
            return 0;
        close(again);
        if (!__atomic_compare_exchange_n(&file->key, &seen, key, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) && seen != key)
            continue;
        VGPU_TEST_STEP();
        memcpy(file->path, path, sizeof path);
        vgpu_store(&file->good, 1);
        return UINT64_C(1) << i;
    }
    return 0;
}

uint64_t vgpu_fd_byte(uint64_t id) { return id >> 2 | FAR; }

static bool set_lock(int fd, int command, struct flock *lock, short type, uint64_t id) {
    *lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)vgpu_fd_byte(id), .l_len = 1};
    return fcntl(fd, command, lock) == 0;
}

bool vgpu_fd_lock(const struct vgpu_counters *counters, int fd, uint64_t files, uint64_t id) {
    struct flock lock;
    struct vgpu_fd_scan scan;
    if (files == 0 || !set_lock(fd, F_OFD_SETLK, &lock, F_RDLCK, id))
        return false;
    vgpu_fd_scan_begin(&scan, counters);
    bool seen = vgpu_fd_is_open(&scan, files, id);
    vgpu_fd_scan_end(&scan);
    if (!seen)
        set_lock(fd, F_OFD_SETLK, &lock, F_UNLCK, id);
    return seen;
}

void vgpu_fd_scan_begin(struct vgpu_fd_scan *scan, const struct vgpu_counters *counters) {
    scan->cancel = vgpu_cancel_hold();
    scan->counters = counters;
    for (int i = 0; i < VGPU_FILES; i++)
        scan->fd[i] = -1;
}

void vgpu_fd_scan_end(struct vgpu_fd_scan *scan) {
    for (int i = 0; i < VGPU_FILES; i++)
        if (scan->fd[i] >= 0)
            close(scan->fd[i]);
    vgpu_cancel_free(scan->cancel);
}

static int file_of(struct vgpu_fd_scan *scan, int i) {
    const struct vgpu_file *file = &scan->counters->header.file[i];
    char path[sizeof file->path];
    if (scan->fd[i] < 0 && vgpu_load(&file->good) != 0) {
        memcpy(path, file->path, sizeof path);
        path[sizeof path - 1] = 0;
        scan->fd[i] = open_file(path, vgpu_load(&file->key));
    }
    return scan->fd[i];
}

bool vgpu_fd_is_open(struct vgpu_fd_scan *scan, uint64_t files, uint64_t id) {
    struct flock lock;
    for (int i = 0; i < VGPU_FILES; i++) {
        if ((files >> i & 1) == 0)
            continue;
        int fd = file_of(scan, i);
        if (fd < 0 || !set_lock(fd, F_OFD_GETLK, &lock, F_WRLCK, id) || lock.l_type != F_UNLCK)
            return true;
    }
    return false;
}

// The kernel lists an open file's own locks: "lock: 1: OFDLCK ADVISORY READ -1
// 00:1a:8 START END".
int vgpu_fd_bytes(int fd, uint64_t *bytes, int n) {
    char path[40], line[256];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *info = fopen(path, "re");
    int found = 0;
    while (info != NULL && found < n && fgets(line, sizeof line, info) != NULL) {
        const char *field = strstr(line, "OFDLCK");
        for (int i = 0; i < 5 && field != NULL; i++) {
            field = strchr(field, ' ');
            field = field != NULL ? field + strspn(field, " ") : NULL;
        }
        uint64_t byte = field != NULL ? strtoull(field, NULL, 10) : 0;
        if (byte >= FAR)
            bytes[found++] = byte;
    }
    if (info != NULL)
        fclose(info);
    return found;
}
