// SPDX-License-Identifier: Apache-2.0
//
// lock.c: mutual exclusion over the state file.
//
// Invariants:
// - Between processes: an open-file-description lock on one byte, which the
//   kernel drops when the process ends, whatever its PID namespace.
// - Between threads of a process, which share the description: a mutex of ours
//   is taken first.
// - Nothing slow happens under a lock.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>

static pthread_mutex_t state_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t device_mutex[SIM_MAX_DEVICES];

__attribute__((constructor)) static void make_mutexes(void) {
    for (unsigned i = 0; i < SIM_MAX_DEVICES; i++) pthread_mutex_init(&device_mutex[i], NULL);
}

static void set(struct sim_state *s, const char *byte, short type) {
    struct flock fl = {.l_type = type,
                       .l_whence = 0,
                       .l_start = byte - (const char *)s,
                       .l_len = 1};
    while (fcntl(sim_fd(), F_OFD_SETLKW, &fl) < 0 && errno == EINTR) {
    }
}

void sim_lock(struct sim_state *s) {
    pthread_mutex_lock(&state_mutex);
    set(s, s->lock_byte, F_WRLCK);
}

void sim_unlock(struct sim_state *s) {
    set(s, s->lock_byte, F_UNLCK);
    pthread_mutex_unlock(&state_mutex);
}

void sim_lock_device(struct sim_state *s, unsigned dev) {
    pthread_mutex_lock(&device_mutex[dev]);
    set(s, s->devices[dev].lock_byte, F_WRLCK);
}

void sim_unlock_device(struct sim_state *s, unsigned dev) {
    set(s, s->devices[dev].lock_byte, F_UNLCK);
    pthread_mutex_unlock(&device_mutex[dev]);
}
