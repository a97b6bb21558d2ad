// SPDX-License-Identifier: Apache-2.0
//
// ipc_fd_test COUNTERS: one process frees an allocation that it has exported, or takes
// what dead ones have left off the total, and another one, which has a descriptor of
// it, imports that and closes it, between any two steps of this. And processes are
// killed between any two steps of exporting, freeing and importing, and of others'
// audits. What is charged is always what somebody has. And a thread is cancelled in none
// of this.

#include "check.h"
#include "memory/ipc_fd.h"
#include "memory/audit.h"
#include "memory/ipc_share.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define LIMIT (UINT64_C(1) << 26)
#define BYTES (LIMIT / 2)

static const char *counters;
static char descriptors[4096]; // the file that they are of
static struct vgpu_process process;
static int partner; // the socket of the other process

// What happens at which step, counted from 1; 0 for nothing.
static unsigned step, at;
static void (*happens)(void);

void vgpu_test_step(void) {
    if (++step == at)
        happens();
}

static void die(void) { kill(getpid(), SIGKILL); }

static void attach(void) {
    memset(&process, 0, sizeof process);
    CHECK(vgpu_region_join(counters, 1, &process.region) == NULL);
    process.limits.device_count = 1;
    process.limits.device[0].memory_bytes = LIMIT;
    at = 0;
}

union control {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
};

static void hand_over(int fd) {
    struct iovec body = {"d", 1};
    union control control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr message = {NULL, 0, &body, 1, &control, sizeof control, 0};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    CHECK(sendmsg(partner, &message, 0) == 1 && close(fd) == 0);
}

static int export(uint64_t id, int *fd) {
    CHECK(vgpu_charge(&process, 0, BYTES));
    *fd = open(descriptors, O_RDONLY | O_CLOEXEC);
    int record = vgpu_share(&process, id, 0, BYTES);
    CHECK(*fd >= 0 && record >= 0);
    vgpu_share_mark(&process, record, *fd);
    return record;
}

// The other process: takes a descriptor, imports it, closes it, ends its import. Or
// makes memory of its own, whose descriptor it closes at once, and frees it.
static void obey(void) {
    char order;
    int fd = -1, record = -1;
    uint64_t id = 1;
    attach();
    for (;;) {
        struct iovec body = {&order, 1};
        union control control;
        struct msghdr message = {NULL, 0, &body, 1, &control, sizeof control, 0};
        if (recvmsg(partner, &message, 0) != 1)
            exit(0);
        if (order == 'd') {
            memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
            continue;
        }
        if (order == 'i')
            CHECK((record = vgpu_import_marked(&process, fd, &(int){0}, &(uint64_t){0})) >= 0);
        if (order == 'm')
            record = export(++id, &fd);
        if (order == 'e')
            vgpu_import_end(&process, record);
        else if (order == 'f')
            vgpu_share_end(&process, record, false);
        else
            CHECK(close(fd) == 0);
        if (order != 'f')
            vgpu_share_look(&process);
        CHECK(write(partner, &order, 1) == 1);
    }
}

static void tell(char order) {
    char done;
    CHECK(write(partner, &order, 1) == 1 && read(partner, &done, 1) == 1 && done == order);
}

static void import_and_close(void) { tell('i'); }
static void free_closed(void) { tell('f'); }

static void want(uint64_t bytes) {
    vgpu_audit(&process, true);
    CHECK(vgpu_charged(&process, 0) == bytes);
}

// Runs it in a process of its own, which is killed at the step. False: it has ended.
static bool killed(void (*run)(uint64_t, int), uint64_t id, int fd, unsigned when) {
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        attach();
        happens = die;
        step = 0;
        at = when;
        run(id, fd);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && (WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
    return WIFSIGNALED(status);
}

static void only_export(uint64_t id, int fd) { export(id, &fd); }

static void leave(uint64_t id, int fd) {
    export(id, &fd);
    hand_over(fd);
}

static void export_and_free(uint64_t id, int fd) {
    unsigned when = at;
    at = 0;
    int record = export(id, &fd);
    hand_over(fd);
    step = 0;
    at = when;
    vgpu_share_end(&process, record, false);
}

static void import_one(uint64_t id, int fd) {
    (void)id;
    CHECK(vgpu_import_marked(&process, fd, &(int){0}, &(uint64_t){0}) >= 0);
}

static int lent;
static void free_it(void) { vgpu_share_end(&process, lent, false); }
static void audit(void) { vgpu_audit(&process, true); }
static void share_another(void) {
    int record = vgpu_share(&process, 4242, 0, 0);
    CHECK(record >= 0);
    vgpu_share_end(&process, record, false);
}

// Whatever is done, at any step of it the partner imports and closes the descriptor.
static void interrupt(void (*run)(void), bool dead, uint64_t *id) {
    bool reached = true;
    for (unsigned when = 1; reached; when++) {
        int fd;
        ++*id;
        if (dead) {
            CHECK(!killed(leave, *id, -1, 0));
            if (when % 2)
                want(BYTES); // seen once: also from there on
            else
                vgpu_region_reap(&process.region, true);
        } else {
            lent = export(*id, &fd);
            hand_over(fd);
        }
        happens = import_and_close;
        step = 0;
        at = when;
        run();
        reached = step >= when;
        at = 0;
        if (!reached)
            tell('i');
        if (!dead && run != free_it)
            free_it();
        want(BYTES);
        tell('e');
        want(0);
    }
}

// Its maker dies, and is found dead, at any step of an audit.
static pid_t maker;
static void bury(void) {
    CHECK(kill(maker, SIGKILL) == 0 && waitpid(maker, NULL, 0) == maker);
    vgpu_region_reap(&process.region, true);
}

static void bury_in_audit(uint64_t *id) {
    bool reached = true;
    for (unsigned when = 1; reached; when++) {
        int fd = -1;
        char made;
        int told[2];
        CHECK(pipe(told) == 0 && (maker = fork()) >= 0);
        ++*id;
        if (maker == 0) {
            attach();
            leave(*id, fd);
            CHECK(write(told[1], "m", 1) == 1);
            for (;;)
                pause();
        }
        CHECK(read(told[0], &made, 1) == 1 && close(told[0]) == 0 && close(told[1]) == 0);
        happens = bury;
        step = 0;
        at = when;
        vgpu_audit(&process, true);
        reached = step >= when;
        at = 0;
        if (!reached)
            bury();
        want(BYTES);
        tell('c');
        want(0);
    }
}

// An audit takes off all that a dead process has left, whatever another one frees
// meanwhile.
static void free_in_audit(uint64_t *id) {
    bool reached = true;
    for (unsigned when = 1; reached; when++) {
        tell('m');
        CHECK(!killed(only_export, ++*id, -1, 0));
        happens = free_closed;
        step = 0;
        at = when;
        vgpu_audit(&process, true);
        reached = step >= when;
        at = 0;
        if (!reached)
            free_closed();
        CHECK(vgpu_charged(&process, 0) == 0);
    }
}

static void look(void) { vgpu_share_look(&process); }
static void say(void) {
    atomic_flag said = ATOMIC_FLAG_INIT;
    vgpu_log_once(&said, "this line is part of a test");
}

static bool ended;
static void *cancel_and_run(void *run) {
    pthread_cancel(pthread_self());
    (*(void (**)(void))run)();
    ended = true;
    return NULL;
}

// Runs it in a thread that would be cancelled at the first chance.
static void uncancelled(void (*run)(void)) {
    pthread_t thread;
    ended = false;
    CHECK(pthread_create(&thread, NULL, cancel_and_run, &run) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(ended);
}

int main(int argc, char **argv) {
    int pair[2];
    CHECK(argc >= 2);
    counters = argv[1];
    CHECK(snprintf(descriptors, sizeof descriptors, "%s.descriptors", counters) < (int)sizeof descriptors);
    int fd = open(descriptors, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && close(fd) == 0);
    uint64_t id = 1000;
    attach();
    for (unsigned when = 1; killed(only_export, ++id, -1, when); when++)
        want(0);
    want(0);

    CHECK(!killed(only_export, ++id, -1, 0));
    uncancelled(audit);
    want(0);
    lent = export(++id, &fd);
    free_it();
    uncancelled(look);
    CHECK(close(fd) == 0);
    want(0);
    uncancelled(say);

    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    partner = pair[pid == 0];
    close(pair[pid != 0]);
    if (pid == 0)
        obey();
    interrupt(free_it, false, &id);
    interrupt(audit, false, &id);
    interrupt(audit, true, &id);
    interrupt(share_another, true, &id);
    bury_in_audit(&id);
    free_in_audit(&id);

    bool dies = true;
    for (unsigned when = 1; dies; when++) {
        dies = killed(export_and_free, ++id, -1, when);
        want(BYTES);
        tell('c');
        want(0);
    }
    dies = true;
    for (unsigned when = 1; dies; when++) {
        int record = export(++id, &fd);
        dies = killed(import_one, id, fd, when);
        vgpu_share_end(&process, record, false);
        want(BYTES);
        CHECK(close(fd) == 0);
        want(0);
    }
    close(partner);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}
