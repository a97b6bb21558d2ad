// SPDX-License-Identifier: Apache-2.0
//
// map.c: making and mapping the state file.
//
// Invariants:
// - The file's descriptor is never closed while the process lives: closing any
//   descriptor of a file drops the process's POSIX record locks on it, and with
//   them the client slot. Libraries that use this are linked with nodelete.
// - A file is complete before it has its name (written aside, then renamed).
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;
static struct sim_state *mapped;
static int mapped_fd = -1;
static struct stat mapped_file;

const char *sim_path(void) {
    const char *p = getenv("SIMGPU_STATE");
    return p && *p ? p : "/run/simgpu/state";
}

static bool valid(const struct sim_state *s) {
    return s->magic == SIM_MAGIC && s->version == SIM_VERSION && s->size == sizeof *s &&
           s->device_count <= SIM_MAX_DEVICES;
}

static struct sim_state *map(int fd) {
    struct sim_state *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return s == MAP_FAILED ? NULL : s;
}

// sim_open returns the mapping of the file that SIMGPU_STATE names now, or NULL
// when there is none that this build understands. A process that turns to
// another file keeps the old mapping, because handles into it may be in use.
struct sim_state *sim_open(void) {
    struct stat st;
    struct sim_state *s = NULL;
    pthread_mutex_lock(&mapping);
    if (stat(sim_path(), &st) == 0) {
        if (mapped && st.st_ino == mapped_file.st_ino && st.st_dev == mapped_file.st_dev) {
            s = mapped;
        } else if (st.st_size == (off_t)sizeof *s) {
            int fd = open(sim_path(), O_RDWR | O_CLOEXEC);
            // What a program without standard output writes there does a device no harm.
            if (fd >= 0 && fd <= STDERR_FILENO) {
                int higher = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
                close(fd);
                fd = higher;
            }
            if (fd >= 0 && (s = map(fd)) != NULL && valid(s)) {
                mapped = s;
                mapped_fd = fd;
                mapped_file = st;
            } else if (fd >= 0) {
                if (s) munmap(s, sizeof *s);
                close(fd);
                s = NULL;
            }
        }
    }
    pthread_mutex_unlock(&mapping);
    return s;
}

int sim_fd(void) { return mapped_fd; }

// sim_create makes a new, empty file beside path and maps it; the caller fills
// it and renames it from path + ".new".
struct sim_state *sim_create(const char *path) {
    char aside[4096];
    if (snprintf(aside, sizeof aside, "%s.new", path) >= (int)sizeof aside) return NULL;
    unlink(aside);
    int fd = open(aside, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return NULL;
    struct sim_state *s = NULL;
    if (fchmod(fd, 0666) == 0 && ftruncate(fd, sizeof *s) == 0 && (s = map(fd)) != NULL) {
        s->magic = SIM_MAGIC;
        s->version = SIM_VERSION;
        s->size = sizeof *s;
    }
    close(fd);
    return s;
}
