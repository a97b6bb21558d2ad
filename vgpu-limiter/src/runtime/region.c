// SPDX-License-Identifier: Apache-2.0
//
// Joins the shared counters, claims a slot, frees the slots of the dead.
//
// Invariants:
//   1. A process that changes a slot's state holds the POSIX lock on its byte. The
//      kernel drops the lock when the process dies, however it dies, and a child
//      of fork never has its parent's.
//   2. A slot is taken from its owner only if the lock is free AND the process
//      that it names has gone or has become another program by exec: the lock
//      alone is lost as well when a program closes descriptors that aren't its
//      own. PIDs are compared within the container, where they were written,
//      together with the start time. A process of which /proc doesn't say more than
//      that it is there, or that has no descriptor left to ask with, lives.
//   3. No descriptor of the counters is closed once the process may hold a slot:
//      closing any of them would drop all of its locks. None is standard input,
//      output or error: a program that was started without them would write its
//      output into the counters.
//   4. A process that dies in here leaves a lock that is free and a slot that the
//      next one may take.

#include "runtime/region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// How often a slot is looked for among all of them: another process may have the only free
// one locked, to see whether its owner lives.
#define CLAIMS 3

// Locks or unlocks one byte without waiting.
static bool set_lock(int fd, uint32_t at, short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return fcntl(fd, F_SETLK, &lock) == 0;
}

static int open_counters(const char *path, int flags) {
    struct vgpu_low low;
    vgpu_low_hold(&low);
    int fd = open(path, flags | O_CLOEXEC), saved = errno;
    vgpu_low_free(&low);
    errno = saved;
    return fd;
}

static bool is_gone(int pid) { return getpgid(pid) < 0 && errno == ESRCH; }

// The start time of a living process in clock ticks since boot; 0 if there is no
// such process or it is a zombie, UNKNOWN if that is all that is known.
#define UNKNOWN UINT64_MAX
static uint64_t start_time(int pid) {
    char path[32], stat[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return is_gone(pid) ? 0 : UNKNOWN;
    ssize_t n = read(fd, stat, sizeof stat - 1);
    close(fd);
    if (n <= 0)
        return is_gone(pid) ? 0 : UNKNOWN;
    stat[n] = 0;
    char *field = strrchr(stat, ')'); // the name before it may hold anything
    if (field == NULL || field[1] != ' ' || field[2] == 'Z' || field[2] == 'X')
        return 0;
    for (int i = 0; i < 20 && field != NULL; i++) // from field 2 to field 22
        field = strchr(field + 1, ' ');
    return field != NULL ? strtoull(field, NULL, 10) : 0;
}

// Which file is behind a descriptor: false if that is unknown. Not fstat, whose symbol is
// younger than the oldest libc that is supported.
static bool which_file(int fd, uint64_t *device, uint64_t *inode) {
    struct stat stat;
    if (syscall(SYS_fstat, fd, &stat) != 0)
        return false;
    *device = stat.st_dev;
    *inode = stat.st_ino;
    return true;
}

// Reports whether a process has counters of this inode mapped; true if that is unknown. On a
// tmpfs many a file has the same number, and few are as long; its device has several numbers.
static bool maps_inode(int pid, uint64_t inode) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), length = (sizeof(struct vgpu_counters) + page - 1) / page * page;
    char path[32], line[512];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "re");
    if (maps == NULL)
        return true;
    bool found = false;
    while (!found && fgets(line, sizeof line, maps) != NULL) {
        char *field = line; // from-to, rights, offset, device, inode
        uint64_t from = strtoull(line, &field, 16), to = *field == '-' ? strtoull(field + 1, NULL, 16) : 0;
        for (int i = 0; i < 4 && field != NULL; i++)
            field = strchr(field + 1, ' ');
        found = field != NULL && strtoull(field, NULL, 10) == inode && to - from == length;
    }
    bool complete = feof(maps) != 0;
    fclose(maps);
    return found || !complete;
}

static bool owner_lives(const struct vgpu_region *region, const struct vgpu_slot *slot) {
    uint64_t now = start_time(slot->pid);
    return now != 0 && (now == slot->start_time || now == UNKNOWN || slot->start_time == 0) &&
           maps_inode(slot->pid, region->inode);
}

// A program that closes descriptors that aren't its own may have reused ours.
static bool descriptor_is_ours(const struct vgpu_region *region) {
    uint64_t device, inode;
    return which_file(region->fd, &device, &inode) && device == region->device && inode == region->inode;
}

bool vgpu_region_lives(const struct vgpu_region *region, uint32_t i) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = i, .l_len = 1};
    const struct vgpu_slot *slot = &region->counters->slot[i];
    if (!vgpu_slot_is_live(vgpu_load(&slot->state)))
        return false;
    bool locked = descriptor_is_ours(region) && fcntl(region->fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    return locked || owner_lives(region, slot); // a process doesn't see its own lock
}

uint32_t vgpu_region_slots(const struct vgpu_counters *counters) {
    uint32_t used = __atomic_load_n(&counters->header.slots_used, __ATOMIC_ACQUIRE);
    return used < VGPU_SLOTS ? used : VGPU_SLOTS;
}

static void raise_slots_used(struct vgpu_counters *counters, uint32_t count) {
    uint32_t *word = &counters->header.slots_used;
    uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    while (seen < count && !__atomic_compare_exchange_n(word, &seen, count, true, __ATOMIC_ACQ_REL,
                                                        __ATOMIC_ACQUIRE))
        ;
}

// Takes slot i if it is free or its owner is dead, and leaves it locked.
static bool seize(const struct vgpu_region *region, uint32_t i) {
    struct vgpu_slot *slot = &region->counters->slot[i];
    if (slot == region->slot || !set_lock(region->fd, i, F_WRLCK))
        return false;
    // A slot of our own PID that isn't ours is of the program before our exec.
    if (!vgpu_slot_is_live(vgpu_load(&slot->state)) || slot->pid == getpid() ||
        !owner_lives(region, slot))
        return true;
    set_lock(region->fd, i, F_UNLCK);
    return false;
}

// Each look at a lock costs the more, the more locks there are: of hundreds of processes
// that start at once, each looks at a few.
static bool claim(struct vgpu_region *region, bool also_of_the_dead) {
    for (uint32_t i = 0; i < VGPU_SLOTS; i++) {
        if (!also_of_the_dead && vgpu_slot_is_live(vgpu_load(&region->counters->slot[i].state)))
            continue;
        if (!seize(region, i))
            continue;
        struct vgpu_slot *slot = &region->counters->slot[i];
        uint64_t generation = vgpu_load(&slot->state) / 2 + 1;
        vgpu_store(&slot->state, generation * 2); // audits skip it
        for (int d = 0; d < VGPU_MAX_DEVICES; d++) {
            vgpu_store(&slot->device[d].begun, 0);
            vgpu_store(&slot->device[d].held, 0);
        }
        for (int d = 0; d < VGPU_SLOWDOWN_DEVICES; d++)
            vgpu_store(&slot->slowdown[d], 0);
        slot->pid = getpid();
        uint64_t began = start_time(slot->pid);
        slot->start_time = began != UNKNOWN ? began : 0;
        raise_slots_used(region->counters, i + 1);
        region->slot = slot;
        region->slot_state = generation * 2 + 1;
        vgpu_store(&slot->state, region->slot_state);
        return true;
    }
    return false;
}

void vgpu_region_reap(const struct vgpu_region *region, bool all) {
    uint32_t slots = descriptor_is_ours(region) ? vgpu_region_slots(region->counters) : 0;
    int own = getpid();
    for (uint32_t i = 0; i < slots; i++) {
        struct vgpu_slot *slot = &region->counters->slot[i];
        bool looks = vgpu_slot_is_live(vgpu_load(&slot->state)) && (all || slot->pid == own || is_gone(slot->pid));
        if (!looks || !seize(region, i))
            continue;
        vgpu_store(&slot->state, vgpu_load(&slot->state) & ~UINT64_C(1));
        set_lock(region->fd, i, F_UNLCK);
    }
}

// The locks behind those of the slots.
enum vgpu_turn_taken vgpu_region_take_turn(const struct vgpu_region *region, uint32_t number) {
    if (!descriptor_is_ours(region))
        return VGPU_TURN_UNKNOWN;
    if (set_lock(region->fd, VGPU_SLOTS + number, F_WRLCK))
        return VGPU_TURN_OURS;
    return errno == EAGAIN || errno == EACCES ? VGPU_TURN_OTHERS : VGPU_TURN_UNKNOWN;
}

void vgpu_region_end_turn(const struct vgpu_region *region, uint32_t number) {
    if (descriptor_is_ours(region))
        set_lock(region->fd, VGPU_SLOTS + number, F_UNLCK);
}

// Maps the counters behind fd and checks their header.
static const char *map(int fd, int protection, uint32_t devices, struct vgpu_counters **out) {
    off_t end = lseek(fd, 0, SEEK_END);
    if (end != (off_t)sizeof **out)
        return end < 0 ? strerror(errno) : "damaged";
    struct vgpu_counters *counters = mmap(NULL, sizeof *counters, protection, MAP_SHARED, fd, 0);
    if (counters == MAP_FAILED)
        return strerror(errno);
    const struct vgpu_counters_header *header = &counters->header;
    const char *wrong = NULL;
    if (header->magic != VGPU_COUNTERS_MAGIC || header->size != sizeof *counters ||
        header->slot_count != VGPU_SLOTS)
        wrong = "damaged";
    else if (header->version != VGPU_COUNTERS_VERSION || header->device_count != devices)
        wrong = "written for another release or another limits file";
    if (wrong != NULL)
        munmap(counters, sizeof *counters);
    else
        *out = counters;
    return wrong;
}

const char *vgpu_region_join(const char *path, uint32_t devices, struct vgpu_region *out) {
    struct vgpu_region region = {.fd = open_counters(path, O_RDWR)};
    if (region.fd < 0)
        return strerror(errno);
    const char *wrong = !which_file(region.fd, &region.device, &region.inode) ? strerror(errno)
                                          : map(region.fd, PROT_READ | PROT_WRITE, devices, &region.counters);
    bool claimed = wrong == NULL && claim(&region, false);
    for (int i = 0; wrong == NULL && !claimed && i < CLAIMS; i++)
        claimed = claim(&region, true);
    if (wrong == NULL && !claimed) {
        bool locks = set_lock(region.fd, VGPU_SLOTS + VGPU_MAX_DEVICES, F_WRLCK) || errno == EAGAIN;
        wrong = locks ? "every slot is taken: too many processes of this container use CUDA" : strerror(errno);
        munmap(region.counters, sizeof *region.counters);
    }
    if (wrong != NULL)
        close(region.fd);
    else
        *out = region;
    return wrong;
}

const char *vgpu_region_view(const char *path, uint32_t devices, struct vgpu_region *out) {
    struct vgpu_region region = {.fd = open_counters(path, O_RDONLY)};
    if (region.fd < 0)
        return strerror(errno);
    which_file(region.fd, &region.device, &region.inode);
    const char *wrong = map(region.fd, PROT_READ, devices, &region.counters);
    if (wrong == NULL)
        *out = region;
    return wrong;
}
