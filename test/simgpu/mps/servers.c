// SPDX-License-Identifier: Apache-2.0
//
// servers.c: the server processes, as the control daemon sees them.
//
// Invariants:
// - A server runs as the user whose clients it takes, or as root in multi-user mode.
// - A legacy server is forgotten when its process has ended; a named one only if it
//   never became ready or was deleted, else it starts again for its next client.
#define _GNU_SOURCE
#include "mps.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void set_defaults(struct server *v) {
    struct space *space = &v->spaces[0];
    space->used = true;
    space->listener = -1;
    space->percent = mps.percent;
    space->priority = mps.priority;
    // Of two limits for one device, by ordinal and by UUID, the later one counts.
    for (unsigned i = 0; i < mps.default_count; i++) {
        int dev = device_named(mps.s, v->devices, v->device_count, mps.defaults[i].device);
        if (dev >= 0) space->pinned[dev] = mps.defaults[i].bytes;
    }
}

// server_add makes the record of a server; NULL when there are too many.
struct server *server_add(const char *name, uid_t uid) {
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++) {
        if (v->used) continue;
        memset(v, 0, sizeof *v);
        v->used = true;
        v->fd = v->listener = -1;
        v->uid = uid;
        snprintf(v->name, sizeof v->name, "%s", name);
        memcpy(v->devices, mps.devices, sizeof v->devices);
        v->device_count = mps.device_count;
        set_defaults(v);
        return v;
    }
    return NULL;
}

// become is the child's way to the server's program, which lies beside this one.
static void become(struct server *v, int fd) {
    char path[4096], list[SIM_MAX_DEVICES * 64] = "";
    sigset_t none;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    if (n < 0) _exit(127);
    path[n] = 0;
    char *folder = dirname(path);
    memmove(path, folder, strlen(folder) + 1);
    strcat(path, "/nvidia-cuda-mps-server");
    for (unsigned i = 0; i < v->device_count; i++) {
        device_uuid(mps.s, v->devices[i], list + strlen(list), 64);
        if (i + 1 < v->device_count) strcat(list, ",");
    }
    setenv("CUDA_VISIBLE_DEVICES", list, 1);
    setenv("CUDA_MPS_LOG_DIRECTORY", mps.log_dir, 1);
    snprintf(list, sizeof list, "%u", (unsigned)v->uid);
    setenv("SIMGPU_MPS_UID", list, 1);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (dup2(fd, 3) < 0) _exit(126);
    char program[] = "nvidia-cuda-mps-server";
    execv(path, (char *[]){program, v->name[0] ? v->name : NULL, NULL});
    _exit(127);
}

bool server_start(struct server *v) {
    int fds[2];
    if (v->pid) return !v->draining;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) return false;
    v->pid = fork();
    if (v->pid == 0) become(v, fds[1]);
    close(fds[1]);
    if (v->pid < 0) {
        v->pid = 0;
        close(fds[0]);
        return false;
    }
    v->fd = fds[0];
    v->ready = v->draining = false;
    log_line("Starting new server %d for user %u", (int)v->pid, (unsigned)v->uid);
    return true;
}

// server_end tells a server to end at once, or to drain: to end after its clients.
void server_end(struct server *v, char how) {
    if (!v->pid) return;
    v->draining = true;
    if (send(v->fd, &how, 1, MSG_NOSIGNAL) < 0 && how == MPS_END) kill(v->pid, SIGKILL);
}

// server_ready reads what a server's process says.
void server_ready(struct server *v) {
    struct mps_ready ready;
    if (recv(v->fd, &ready, sizeof ready, MSG_DONTWAIT) != sizeof ready) return;
    v->slot = ready.slot;
    v->generation = ready.generation;
    memcpy(v->shared, ready.shared, sizeof v->shared);
    v->ready = true;
    log_line("NEW SERVER %d: Ready", (int)v->pid);
    clients_retry();
}

static void ended(struct server *v, int status) {
    bool started = v->ready;
    if (WIFSIGNALED(status))
        log_line("Server %d terminated by signal %d", (int)v->pid, WTERMSIG(status));
    else
        log_line("Server %d exited with status %d", (int)v->pid, WEXITSTATUS(status));
    mps.failed |= status != 0;
    mps_unshare(v->shared);
    v->shared[0] = 0;
    close(v->fd);
    v->fd = -1;
    v->pid = 0;
    v->ready = v->draining = false;
    if (!started) clients_fail(v);
    if (mps.protocol == 3 && (v->deleted || !started)) v3_forget(v);
    if (mps.protocol == 2) v->used = false;
    // Its clients are told now, not when somebody happens to look.
    sim_lock(mps.s);
    sim_reap(mps.s);
    sim_unlock(mps.s);
}

void servers_reap(void) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
            if (v->used && v->pid == pid) ended(v, status);
    clients_retry();
}

struct server *server_by_pid(const char *text) {
    char *end;
    long pid = text ? strtol(text, &end, 10) : 0;
    if (!text || end == text || *end || pid <= 0) return NULL;
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++)
        if (v->used && v->pid == (pid_t)pid) return v;
    return NULL;
}

// server_slot returns a server's slot, NULL before it is ready and after its end.
struct sim_client *server_slot(struct server *v) {
    if (!v->pid || !v->ready) return NULL;
    struct sim_client *slot = &mps.s->clients[v->slot];
    bool its = atomic_load(&slot->in_use) && atomic_load(&slot->generation) == v->generation;
    return its ? slot : NULL;
}

const char *server_status(struct server *v) {
    struct sim_client *slot = server_slot(v);
    if (!slot) return "INITIALIZING";
    sim_lock(mps.s);
    unsigned status = sim_mps_settle(mps.s, slot);
    sim_unlock(mps.s);
    return status == SIM_MPS_FAULT ? "FAULT" : "ACTIVE";
}
