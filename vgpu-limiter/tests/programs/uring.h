// SPDX-License-Identifier: Apache-2.0
//
// Part of calls: what the kernel does for a program by io_uring, which takes no system call
// by the operation's own name.

#include <linux/io_uring.h>
#include <sys/mman.h>

static struct {
    int fd;
    struct io_uring_params params;
    char *submitted, *completed;
    struct io_uring_sqe *entries;
} uring;

// 1000 where the machine has none.
static int uring_begin(void) {
    uring.fd = (int)syscall(SYS_io_uring_setup, 4, &uring.params);
    if (uring.fd < 0)
        return 1000;
    const struct io_sqring_offsets *sq = &uring.params.sq_off;
    const struct io_cqring_offsets *cq = &uring.params.cq_off;
    uring.submitted = mmap(NULL, sq->array + uring.params.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE,
                           MAP_SHARED, uring.fd, IORING_OFF_SQ_RING);
    uring.completed = mmap(NULL, cq->cqes + uring.params.cq_entries * sizeof(struct io_uring_cqe),
                           PROT_READ | PROT_WRITE, MAP_SHARED, uring.fd, IORING_OFF_CQ_RING);
    uring.entries = mmap(NULL, uring.params.sq_entries * sizeof *uring.entries, PROT_READ | PROT_WRITE, MAP_SHARED,
                         uring.fd, IORING_OFF_SQES);
    return uring.submitted == MAP_FAILED || uring.completed == MAP_FAILED || uring.entries == MAP_FAILED;
}

// Has one operation done and returns what it answered.
static int uring_do(struct io_uring_sqe operation) {
    unsigned *tail = (unsigned *)(void *)(uring.submitted + uring.params.sq_off.tail);
    unsigned *order = (unsigned *)(void *)(uring.submitted + uring.params.sq_off.array);
    unsigned *head = (unsigned *)(void *)(uring.completed + uring.params.cq_off.head);
    unsigned place = *tail & (uring.params.sq_entries - 1);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(void *)(uring.completed + uring.params.cq_off.cqes);
    uring.entries[place] = operation;
    order[place] = place;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, uring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
        return -1;
    int answered = done[*head & (uring.params.cq_entries - 1)].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return answered;
}

// Writes the file "copy" over the counters.
static int uring_write_back(void) {
    static char copy[4 << 20];
    int from = open("copy", O_RDONLY), to = open("counters", O_WRONLY);
    ssize_t n = read(from, copy, sizeof copy);
    int written = uring_do((struct io_uring_sqe){.opcode = IORING_OP_WRITE, .fd = to, .addr = (uintptr_t)copy, .len = (unsigned)n});
    return n <= 0 || written != n;
}

// Closes every descriptor but its own, those of the library too.
static int uring_close_descriptors(void) {
    for (int fd = 3; fd < 100; fd++)
        if (fd != uring.fd)
            uring_do((struct io_uring_sqe){.opcode = IORING_OP_CLOSE, .fd = fd});
    return 0;
}

// Holds what a descriptor is open of, and closes the descriptor.
static int uring_hold(int fd) {
    return syscall(SYS_io_uring_register, uring.fd, IORING_REGISTER_FILES, &fd, 1) != 0 || close(fd) != 0;
}

static int uring_drop(void) {
    return syscall(SYS_io_uring_register, uring.fd, IORING_UNREGISTER_FILES, NULL, 0) != 0;
}
