// SPDX-License-Identifier: Apache-2.0
//
// ipc_share_test COUNTERS: processes make allocations, import each other's, send each other
// descriptors of them, let go of all in any order and are killed at any instruction.
// Whenever the others are stopped, what is really held by anybody is within the limit;
// whoever has a descriptor is told whose memory it is; at the end, the last process
// can have exactly what nobody living holds.

#include "check.h"
#include "memory/audit.h"
#include "memory/ipc_share.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define LIMIT (UINT64_C(1) << 26)
#define CHILDREN 4
#define ROUNDS 120
#define OBJECTS 32
#define MINE 4

// The device: an allocation lives as long as somebody has its bit in holders, and
// can be imported as long, or a descriptor of it is open. Its number is index +
// OBJECTS * generation; its descriptors have the byte of that number locked.
static struct object {
    atomic_uint holders;
    atomic_ullong bytes, number;
} *objects;
static atomic_ullong *imports, *left, *received;
static struct vgpu_process process;
static uint64_t state;

static uint64_t random_below(uint64_t n) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (state >> 33) % n;
}

void vgpu_test_step(void) {
    if (random_below(2))
        sched_yield();
}

static void attach(const char *path) {
    CHECK(vgpu_region_join(path, 1, &process.region) == NULL);
    process.limits.device_count = 1;
    process.limits.device[0].memory_bytes = LIMIT;
    state = (uint64_t)getpid() * UINT64_C(2654435761);
}

static char descriptors[4096]; // the file that they are of
static int mailbox[2];

static bool lock_byte(int fd, int command, struct flock *lock, short type, uint64_t number) {
    *lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)number, .l_len = 1};
    return fcntl(fd, command, lock) == 0;
}

static bool has_descriptors(uint64_t number) {
    struct flock lock;
    int fd = open(descriptors, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && lock_byte(fd, F_OFD_GETLK, &lock, F_WRLCK, number));
    close(fd);
    return lock.l_type != F_UNLCK;
}

union control {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
};

// Puts a descriptor of an allocation in the mailbox, if there is room.
static void post(const struct object *o, int record) {
    struct flock lock;
    uint64_t number = atomic_load(&o->number);
    int fd = open(descriptors, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && lock_byte(fd, F_OFD_SETLK, &lock, F_RDLCK, number));
    vgpu_share_mark(&process, record, fd);
    struct iovec body = {&number, sizeof number};
    union control control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr message = {NULL, 0, &body, 1, &control, sizeof control, 0};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    sendmsg(mailbox[0], &message, MSG_DONTWAIT);
    close(fd);
}

// Imports what is in the mailbox. The place of it, or NULL.
static struct object *fetch(unsigned bit, int *record) {
    uint64_t number;
    struct iovec body = {&number, sizeof number};
    union control control;
    struct msghdr message = {NULL, 0, &body, 1, &control, sizeof control, 0};
    if (recvmsg(mailbox[1], &message, MSG_DONTWAIT) != sizeof number)
        return NULL;
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    struct object *o = &objects[number % OBJECTS];
    CHECK(atomic_load(&o->number) == number); // it lives as long as the descriptor
    *record = vgpu_import_marked(&process, fd, &(int){0}, &(uint64_t){0});
    CHECK(*record >= 0);
    bool mine = (atomic_fetch_or(&o->holders, bit) & bit) != 0;
    vgpu_test_step();
    close(fd);
    atomic_fetch_add(received, 1);
    if (!mine)
        return o;
    vgpu_import_end(&process, *record);
    return NULL;
}

static uint64_t id_of(uint64_t number) { return vgpu_share_id(&number, sizeof number); }

// Makes an allocation that others can import. The place of it, or NULL.
static struct object *make(unsigned bit, int *record) {
    uint64_t bytes = random_below(LIMIT / 8) + 1;
    if (!vgpu_charge(&process, 0, bytes))
        return NULL;
    for (struct object *o = objects; o < objects + OBJECTS; o++) {
        unsigned nobody = 0;
        // A bit of its own keeps the place while it is filled in.
        if (!atomic_compare_exchange_strong(&o->holders, &nobody, bit << CHILDREN))
            continue;
        if (has_descriptors(atomic_load(&o->number)) || atomic_load(&o->holders) != bit << CHILDREN) {
            atomic_fetch_and(&o->holders, ~(bit << CHILDREN));
            continue;
        }
        atomic_store(&o->bytes, bytes);
        atomic_fetch_add(&o->number, OBJECTS);
        *record = vgpu_share(&process, id_of(o->number), 0, bytes);
        atomic_store(&o->holders, bit);
        return o;
    }
    vgpu_uncharge(&process, 0, bytes);
    return NULL;
}

// Imports some allocation of another process. The place of it, or NULL.
static struct object *import(unsigned bit, int *record) {
    struct object *o = &objects[random_below(OBJECTS)];
    uint64_t number = atomic_load(&o->number);
    unsigned holders = atomic_load(&o->holders);
    if (holders == 0 || holders >= 1u << CHILDREN || (holders & bit) != 0 ||
        (*record = vgpu_import(&process, id_of(number))) < 0)
        return NULL;
    while (holders != 0 && holders < 1u << CHILDREN && atomic_load(&o->number) == number) {
        if (!atomic_compare_exchange_weak(&o->holders, &holders, holders | bit))
            continue;
        atomic_fetch_add(imports, 1);
        return o;
    }
    vgpu_import_end(&process, *record); // it has gone meanwhile
    return NULL;
}

static void live(unsigned bit) {
    struct object *own[MINE] = {0}, *borrowed[MINE] = {0};
    int own_record[MINE], borrowed_record[MINE];
    for (;;) {
        size_t i = random_below(MINE);
        if (own[i] == NULL) {
            own[i] = make(bit, &own_record[i]);
        } else if (random_below(2)) {
            post(own[i], own_record[i]);
        } else {
            unsigned others = atomic_fetch_and(&own[i]->holders, ~bit) & ~bit;
            atomic_fetch_add(left, others != 0);
            vgpu_share_end(&process, own_record[i], false);
            own[i] = NULL;
        }
        i = random_below(MINE);
        if (borrowed[i] == NULL) {
            borrowed[i] = random_below(2) ? fetch(bit, &borrowed_record[i]) : import(bit, &borrowed_record[i]);
        } else {
            atomic_fetch_and(&borrowed[i]->holders, ~bit);
            vgpu_import_end(&process, borrowed_record[i]);
            borrowed[i] = NULL;
        }
    }
}

static pid_t start(const char *path, int child) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        attach(path);
        live(1u << child);
    }
    return pid;
}

static void bury(int child) {
    unsigned bits = 1u << child | 1u << child << CHILDREN;
    for (struct object *o = objects; o < objects + OBJECTS; o++)
        atomic_fetch_and(&o->holders, ~bits);
}

static uint64_t really_held(void) {
    uint64_t sum = 0;
    for (struct object *o = objects; o < objects + OBJECTS; o++)
        if ((atomic_load(&o->holders) & ((1u << CHILDREN) - 1)) != 0 || has_descriptors(atomic_load(&o->number)))
            sum += atomic_load(&o->bytes);
    return sum;
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    objects = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(objects != MAP_FAILED);
    imports = (atomic_ullong *)(objects + OBJECTS);
    left = imports + 1;
    received = imports + 2;
    CHECK(snprintf(descriptors, sizeof descriptors, "%s.descriptors", argv[1]) < (int)sizeof descriptors);
    int file = open(descriptors, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(file >= 0 && close(file) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, mailbox) == 0);
    for (uint64_t i = 0; i < OBJECTS; i++)
        atomic_store(&objects[i].number, i);
    pid_t child[CHILDREN];
    int status;
    for (int c = 0; c < CHILDREN; c++)
        child[c] = start(argv[1], c);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t before = atomic_load(imports);
        while (atomic_load(imports) < before + 20) {
            CHECK(waitpid(-1, NULL, WNOHANG) == 0); // one that has found something wrong
            sched_yield();
        }
        for (int c = 0; c < CHILDREN; c++) {
            CHECK(kill(child[c], SIGSTOP) == 0);
            CHECK(waitpid(child[c], &status, WUNTRACED) == child[c] && WIFSTOPPED(status));
        }
        CHECK(really_held() <= LIMIT);
        int victim = round % CHILDREN;
        CHECK(kill(child[victim], SIGKILL) == 0 && waitpid(child[victim], NULL, 0) == child[victim]);
        bury(victim);
        child[victim] = start(argv[1], victim);
        for (int c = 0; c < CHILDREN; c++)
            CHECK(c == victim || kill(child[c], SIGCONT) == 0);
    }
    CHECK(atomic_load(left) > 0 && atomic_load(received) > 0);
    // One process is left with what it has made and imported.
    for (int c = 1; c < CHILDREN; c++) {
        CHECK(kill(child[c], SIGKILL) == 0 && waitpid(child[c], NULL, 0) == child[c]);
        bury(c);
    }
    CHECK(kill(child[0], SIGSTOP) == 0 && waitpid(child[0], &status, WUNTRACED) == child[0]);
    attach(argv[1]);
    vgpu_audit(&process, true);
    CHECK(vgpu_charged(&process, 0) >= really_held());
    CHECK(kill(child[0], SIGKILL) == 0 && waitpid(child[0], NULL, 0) == child[0]);
    bury(0);
    vgpu_audit(&process, true);
    CHECK(vgpu_charged(&process, 0) == really_held()); // by descriptors that nobody has received
    CHECK(close(mailbox[0]) == 0 && close(mailbox[1]) == 0 && really_held() == 0);
    CHECK(vgpu_charge(&process, 0, LIMIT));
    CHECK(!vgpu_charge(&process, 0, 1));
    vgpu_uncharge(&process, 0, LIMIT);
    CHECK(vgpu_charged(&process, 0) == 0);
    return 0;
}
