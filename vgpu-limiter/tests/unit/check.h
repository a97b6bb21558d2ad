// SPDX-License-Identifier: Apache-2.0
//
// What every unit test uses.

#ifndef VGPU_CHECK_H
#define VGPU_CHECK_H

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// Ends the test where something isn't so.
#define CHECK(what)                                                    \
    do {                                                               \
        if (!(what)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what); \
            exit(1);                                                   \
        }                                                              \
    } while (0)

// Makes a file's content these bytes, in place.
static inline void put(const char *path, const void *bytes, size_t n) {
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, bytes, n, 0) == (ssize_t)n && ftruncate(fd, (off_t)n) == 0);
    close(fd);
}

// Reads n bytes of a file.
static inline void get(const char *path, void *bytes, size_t n) {
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

#endif
