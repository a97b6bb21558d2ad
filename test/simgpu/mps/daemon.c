// SPDX-License-Identifier: Apache-2.0
//
// daemon.c: the control daemon: its files, its loop, and the faults planted in it.
//
// Invariants:
// - One daemon per pipe folder: whoever holds the lock on control_lock. What a
//   killed one left there is replaced.
// - By "control" come CUDA processes, and commands of protocol 3, which look who
//   asks; legacy commands come by "control_privileged", which only the daemon's
//   user may open.
// - A planted hang stops the loop: nobody is answered, no signal is heard.
#define _GNU_SOURCE
#include "mps.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct control mps;
static int control, privileged, signals, lock_file;

void say(struct reply *r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t room = sizeof r->text - r->length;
    int n = vsnprintf(r->text + r->length, room, format, args);
    va_end(args);
    if (n > 0) r->length += (size_t)n < room ? (size_t)n : room - 1;
}

void refuse(struct reply *r, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->bad = true;
    say(r, "%s\n", text);
    log_line("%s", text);
}

// listen_at makes a socket in place of whatever has its name.
int listen_at(const char *dir, const char *name, mode_t mode) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (snprintf(at.sun_path, sizeof at.sun_path, "%s/%s", dir, name) >= (int)sizeof at.sun_path)
        return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unlink(at.sun_path);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 &&
        chmod(at.sun_path, mode) == 0 && listen(fd, 128) == 0)
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

// Branch 550 has it, 535 not.
static void write_pid(void) {
    char path[256];
    if (branch() < 550) return;
    snprintf(path, sizeof path, "%s/nvidia-cuda-mps-control.pid", mps.dir);
    FILE *f = fopen(path, "we");
    if (!f) return;
    fprintf(f, "%d", (int)getpid());
    fclose(f);
}

// set_up takes the pipe folder; the message says why it can't.
static const char *set_up(void) {
    char path[256];
    if (mkdir(mps.dir, 0755) < 0 && errno != EEXIST) return "Failed to create the pipe directory";
    snprintf(path, sizeof path, "%s/control_lock", mps.dir);
    lock_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_file < 0) return "Failed to open the lock file";
    if (flock(lock_file, LOCK_EX | LOCK_NB) < 0)
        return "An instance of this daemon is already running";
    control = listen_at(mps.dir, "control", 0666);
    privileged = listen_at(mps.dir, "control_privileged", 0700);
    if (control < 0 || privileged < 0) return "Failed to create the control sockets";
    snprintf(path, sizeof path, "%s/log", mps.dir);
    if (mkfifo(path, 0777) < 0 && errno != EEXIST) return "Failed to create the log pipe";
    write_pid();
    return NULL;
}

// tear_down removes the log and the pid file and frees the lock before it answers `quit`: another
// daemon can start then, though this process exists until its memory is unmapped.
static void tear_down(void) {
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (v->used && mps.protocol == 3) v3_forget(v);
    // The real one leaves its sockets and its lock.
    static const char *const names[] = {"log", "nvidia-cuda-mps-control.pid"};
    char path[256];
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", mps.dir, names[i]);
        unlink(path);
    }
    close(lock_file);
    for (struct conn *c = mps.conns; c < mps.conns + MPS_CONNS; c++)
        if (c->fd >= 0 && c->quits) send(c->fd, mps.failed ? "1" : "0", 1, MSG_NOSIGNAL);
}

static void defaults_from_environment(void) {
    const char *threads = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    const char *pinned = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    char list[4096], *rest = list, *device;
    uint64_t bytes;
    mps.percent = 100;
    if (threads && !mps_percent(threads, &mps.percent))
        log_line("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%s is no percentage", threads);
    snprintf(list, sizeof list, "%s", pinned ? pinned : "");
    while (mps.default_count < MPS_DEFAULTS && mps_next_limit(&rest, &device, &bytes) > 0) {
        struct mps_default *d = &mps.defaults[mps.default_count++];
        snprintf(d->device, sizeof d->device, "%s", device);
        d->bytes = bytes;
    }
}

static void accept_from(int listener, struct conn from) {
    struct ucred who;
    socklen_t length = sizeof who;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct conn *c = mps.conns;
    while (c < mps.conns + MPS_CONNS && c->fd >= 0) c++;
    if (fd < 0) return;
    if (c == mps.conns + MPS_CONNS || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) < 0) {
        close(fd);
        return;
    }
    *c = from;
    c->fd = fd;
    c->pid = who.pid;
    c->uid = who.uid;
}

static void nap(uint32_t ms) {
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    while (nanosleep(&t, &t) < 0 && errno == EINTR) {
    }
}

// suffer does what faults are planted.
static void suffer(void) {
    nap(sim_planted(mps.s, mps.mask, SIM_SLOW));
    while (sim_planted(mps.s, mps.mask, SIM_HANG)) nap(5);
}

static void hang_up(struct conn *c) {
    close(c->fd);
    c->fd = -1;
}

static void send_reply(struct conn *c, struct reply *r) {
    static char packet[MPS_PACKET];
    packet[0] = r->bad ? '1' : '0';
    memcpy(packet + 1, r->text, r->length);
    send(c->fd, packet, r->length + 1, MSG_NOSIGNAL);
}

static void serve(struct conn *c) {
    static char packet[MPS_PACKET];
    static struct reply reply;
    ssize_t n = recv(c->fd, packet, sizeof packet - 1, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0 || c->waiting || c->quits) {
        hang_up(c);
        return;
    }
    suffer();
    packet[n] = 0;
    memcpy(&c->hello, packet, sizeof c->hello < (size_t)n ? sizeof c->hello : (size_t)n);
    if ((size_t)n == sizeof c->hello && c->hello.magic == MPS_HELLO && !c->privileged) {
        client_hello(c);
        return;
    }
    reply.bad = false;
    reply.length = 0;
    if (mps.protocol == 2 && !c->privileged)
        refuse(&reply, "Unknown command: the daemon speaks protocol 2");
    else if (mps.protocol == 3)
        c->quits = v3_command(packet, (size_t)n, c->uid, &reply);
    else
        c->quits = legacy_command(packet, &reply);
    if (!c->quits) send_reply(c, &reply);
}

static bool servers_run(void) {
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (v->used && v->pid) return true;
    return false;
}

static void on_signal(void) {
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD) {
            servers_reap();
        } else {
            mps.quitting = true;
            for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
                if (v->used) server_end(v, MPS_END);
        }
    }
}

static bool anyone_waits(void) {
    for (struct conn *c = mps.conns; c < mps.conns + MPS_CONNS; c++)
        if (c->fd >= 0 && c->waiting) return true;
    return false;
}

// listeners fills in the sockets that protocol 3's servers and namespaces have.
static unsigned listeners(struct pollfd *fds, struct conn *from) {
    unsigned n = 0;
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++) {
        if (!v->used || mps.protocol == 2) continue;
        from[n] = (struct conn){.server = v};
        fds[n++] = (struct pollfd){v->listener, POLLIN, 0};
        for (struct space *space = v->spaces; space < v->spaces + MPS_SPACES; space++) {
            if (!space->used) continue;
            from[n] = (struct conn){.server = v, .space = space};
            fds[n++] = (struct pollfd){space->listener, POLLIN, 0};
        }
    }
    return n;
}

// turn is one turn of the loop. Clients' ends are nobody's message: whoever waits
// for them looks again.
static void turn(void) {
    static struct conn from[MPS_SERVERS * (MPS_SPACES + 1)];
    static struct pollfd fds[3 + MPS_SERVERS + MPS_CONNS + sizeof from / sizeof *from];
    memcpy(fds, (struct pollfd[]){
        {signals, POLLIN, 0}, {control, POLLIN, 0}, {privileged, POLLIN, 0}}, 3 * sizeof *fds);
    struct server *of_fd[MPS_SERVERS];
    struct conn *conn_fd[MPS_CONNS];
    unsigned n = 3, servers = 0, conns = 0;
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (v->used && v->pid && !v->ready) {
            of_fd[servers++] = v;
            fds[n++] = (struct pollfd){v->fd, POLLIN, 0};
        }
    for (struct conn *c = mps.conns; c < mps.conns + MPS_CONNS; c++)
        if (c->fd >= 0) {
            conn_fd[conns++] = c;
            fds[n++] = (struct pollfd){c->fd, POLLIN, 0};
        }
    unsigned own = listeners(fds + n, from);
    if (poll(fds, n + own, anyone_waits() ? 20 : -1) < 0) return;
    for (unsigned i = 0; i < own; i++)
        if (fds[n + i].revents & POLLIN) accept_from(fds[n + i].fd, from[i]);
    for (unsigned i = 0; i < servers; i++)
        if (fds[3 + i].revents & POLLIN) server_ready(of_fd[i]);
    for (unsigned i = 0; i < conns; i++)
        if (fds[3 + servers + i].revents && conn_fd[i]->fd >= 0) serve(conn_fd[i]);
    if (fds[0].revents) on_signal();
    if (fds[1].revents) accept_from(control, (struct conn){0});
    if (fds[2].revents) accept_from(privileged, (struct conn){.privileged = true});
    if (!mps.quitting) clients_retry();
}

static void take_slot(void) {
    struct sim_client *slot = sim_attach(mps.s);
    if (!slot) return;
    slot->mps.devices = mps.mask;
    atomic_store(&slot->mps.role, SIM_MPS_CONTROL);
}

// daemon_main runs the daemon; ready is told how it went, in a byte and a text.
int daemon_main(int ready) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    for (struct conn *c = mps.conns; c < mps.conns + MPS_CONNS; c++) c->fd = -1;
    mps.device_count = devices_of(mps.s, getenv("CUDA_VISIBLE_DEVICES"), mps.devices);
    for (unsigned i = 0; i < mps.device_count; i++) mps.mask |= 1u << mps.devices[i];
    const char *trouble = set_up();
    log_open(mps.foreground ? NULL : "control.log", "Control");
    if (trouble) {
        dprintf(ready, "%s\n", trouble);
        return 1;
    }
    take_slot();
    defaults_from_environment();
    log_line("Starting control daemon using socket %s/control", mps.dir);
    log_line("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s", mps.dir);
    log_line("CUDA MPS Control binary version: %d", mps.s->cuda_version);
    if (ready != STDERR_FILENO) close(ready);
    while (!mps.quitting || servers_run()) turn();
    tear_down();
    log_line("Exit with status %d", mps.failed);
    return mps.failed;
}
