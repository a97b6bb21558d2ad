// SPDX-License-Identifier: Apache-2.0
//
// holds.c: processes that use memory which another one has made.
//
// Invariants:
// - Memory is its owner's as long as that lives and hasn't freed it, and counts
//   there. Afterwards it counts here, once, until its last holder has let go.
// - A hold is of one holder: it ends with it (clients.c). A holder may be a
//   descriptor: it holds as long as it is open anywhere, which its lock on a byte of
//   a file beside the state tells everybody.
// - Holds change under the state lock; they are read without.
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define PASSED UINT32_MAX  // a holder that is a descriptor
#define RECORD 512         // what a descriptor carries, in the file

// open_passed opens the file anew: closing it drops nobody else's locks.
static int open_passed(void) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s.passed", sim_path()) >= (int)sizeof path) return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0) (void)!fchmod(fd, 0666);  // another user's file is so already
    return fd;
}

static bool set_lock(int fd, unsigned i, int command, struct flock *lock, short type) {
    *lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = i, .l_len = 1};
    return fcntl(fd, command, lock) == 0;
}

// is_open tells whether a descriptor that holds is open still; yes where that cannot
// be told.
static bool is_open(struct sim_state *s, const struct sim_hold *h) {
    struct flock lock;
    if (h->holder != PASSED) return true;
    int fd = open_passed();
    bool closed = fd >= 0 && set_lock(fd, (unsigned)(h - s->holds), F_OFD_GETLK, &lock, F_WRLCK) && lock.l_type == F_UNLCK;
    if (fd >= 0) close(fd);
    return !closed;
}

static bool lives(struct sim_state *s, uint32_t slot, uint32_t generation) {
    return atomic_load(&s->clients[slot].in_use) &&
           atomic_load(&s->clients[slot].generation) == generation;
}

static bool same(const struct sim_hold *a, const struct sim_hold *b) {
    return a->of.slot == b->of.slot && a->of.generation == b->of.generation && a->of.id == b->of.id;
}

// place finds one that is free. The caller holds the state lock, as for the next.
static int place(struct sim_state *s) {
    for (unsigned i = 0; i < SIM_MAX_HOLDS; i++)
        if (!atomic_load(&s->holds[i].in_use) || !is_open(s, &s->holds[i])) return (int)i;
    return -1;
}

static void take(struct sim_state *s, int i, uint32_t holder, const struct sim_memory *of, bool freed) {
    struct sim_hold *h = &s->holds[i];
    h->of = *of;
    h->holder = holder;
    atomic_store(&h->freed, freed);
    if ((unsigned)i >= atomic_load(&s->hold_high)) atomic_store(&s->hold_high, (unsigned)i + 1);
    atomic_store(&h->in_use, 1);
}

// sim_hold_add finds memory that its owner has, or, by a descriptor, that there is.
int sim_hold_add(struct sim_state *s, struct sim_client *holder, const struct sim_memory *of, bool passed) {
    struct sim_hold wanted = {.of = *of};
    bool freed = false, kept = false;
    sim_lock(s);
    bool owned = lives(s, of->slot, of->generation) && sim_client_pid(s, &s->clients[of->slot]) != 0;
    for (unsigned i = 0; i < atomic_load(&s->hold_high); i++) {
        struct sim_hold *h = &s->holds[i];
        if (!atomic_load(&h->in_use) || !same(h, &wanted)) continue;
        freed |= atomic_load(&h->freed);
        kept |= h->holder == PASSED && is_open(s, h);
    }
    int found = (owned && !freed) || (passed && kept) ? place(s) : -1;
    if (found >= 0) take(s, found, (uint32_t)(holder - s->clients), of, freed);
    sim_unlock(s);
    return found;
}

// sim_hold_pass makes a descriptor that holds memory of a living owner. What it
// carries lies in the file at its offset.
int sim_hold_pass(struct sim_state *s, const struct sim_memory *of, const void *content, size_t size) {
    struct flock lock;
    sim_lock(s);
    int i = place(s), fd = i >= 0 && size <= RECORD ? open_passed() : -1;
    off_t at = ((off_t)i + 1) * RECORD;
    if (fd >= 0 && (pwrite(fd, content, size, at) != (ssize_t)size || lseek(fd, at, SEEK_SET) != at ||
                    !set_lock(fd, (unsigned)i, F_OFD_SETLK, &lock, F_RDLCK))) {
        close(fd);
        fd = -1;
    }
    if (fd >= 0) take(s, i, PASSED, of, false);
    sim_unlock(s);
    return fd;
}

void sim_hold_drop(struct sim_state *s, int hold) {
    sim_lock(s);
    atomic_store(&s->holds[hold].in_use, 0);
    sim_unlock(s);
}

// sim_hold_freed uncharges what its owner has freed, at the instant at which it
// becomes its holders'; by itself where it has none.
void sim_hold_freed(struct sim_state *s, struct sim_client *owner, uint64_t id, unsigned dev, uint64_t bytes) {
    if (!atomic_load(&s->hold_high)) {
        sim_uncharge(owner, dev, bytes);
        return;
    }
    struct sim_hold freed = {.of = {.slot = (uint32_t)(owner - s->clients),
                                    .generation = atomic_load(&owner->generation),
                                    .id = id}};
    sim_lock(s);
    for (unsigned i = 0; i < atomic_load(&s->hold_high); i++)
        if (atomic_load(&s->holds[i].in_use) && same(&s->holds[i], &freed))
            atomic_store(&s->holds[i].freed, 1);
    sim_uncharge(owner, dev, bytes);
    sim_unlock(s);
}

// sim_hold_end ends the holds of a slot. The caller holds the state lock.
void sim_hold_end(struct sim_state *s, uint32_t slot) {
    for (unsigned i = 0; i < atomic_load(&s->hold_high); i++)
        if (s->holds[i].holder == slot) atomic_store(&s->holds[i].in_use, 0);
}

static bool orphaned(struct sim_state *s, const struct sim_hold *h, unsigned dev) {
    return atomic_load(&h->in_use) && h->of.dev == dev &&
           (atomic_load(&h->freed) || !lives(s, h->of.slot, h->of.generation)) && is_open(s, h);
}

uint64_t sim_hold_used(struct sim_state *s, unsigned dev) {
    uint64_t sum = 0;
    unsigned high = atomic_load(&s->hold_high);
    for (unsigned i = 0; i < high; i++) {
        if (!orphaned(s, &s->holds[i], dev)) continue;
        bool again = false;
        for (unsigned j = 0; j < i && !again; j++)
            again = orphaned(s, &s->holds[j], dev) && same(&s->holds[i], &s->holds[j]);
        if (!again) sum += s->holds[i].of.size;
    }
    return sum;
}
