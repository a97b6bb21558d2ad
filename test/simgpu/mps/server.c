// SPDX-License-Identifier: Apache-2.0
//
// nvidia-cuda-mps-server: holds a context on each of its devices, for which it is
// the one process of an exclusive device. Clients work without it, in the state
// file; it is there to be seen, to be killed and to end.
//
//   nvidia-cuda-mps-server [NAME]     started by nvidia-cuda-mps-control alone
//
// Invariants:
// - It becomes its user as soon as it has its files: those need not be his.
// - It is ready when its slot says so, and has told descriptor 3.
// - Without its control daemon it serves the clients it has, and ends after them.
// - It has a file in MPS_SHARED, named as CUDA names its own, for as long as it runs;
//   the control daemon removes that of one that was killed.
// - Its end, however it comes, ends its clients' work (state/mps.c).
#define _GNU_SOURCE
#include "mps.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct control mps;

static bool occupied(struct sim_state *s, struct sim_client *me, unsigned dev) {
    unsigned mode = atomic_load(&s->devices[dev].compute_mode);
    if (mode == 2) return true;  // prohibited
    if (mode != 3) return false;  // not exclusive to a process
    for (unsigned i = 0; i < atomic_load(&s->client_high); i++) {
        struct sim_client *c = &s->clients[i];
        if (c != me && atomic_load(&c->in_use) && atomic_load(&c->work[dev].contexts)) return true;
    }
    return false;
}

// occupy makes the server's contexts: false if a device or its memory is taken.
static bool occupy(struct sim_state *s, struct sim_client *me, const unsigned list[], unsigned n) {
    bool ok = true;
    sim_lock(s);
    sim_reap(s);
    for (unsigned i = 0; ok && i < n; i++) ok = !occupied(s, me, list[i]);
    for (unsigned i = 0; ok && i < n; i++) {
        atomic_store(&me->work[list[i]].contexts, 1);
        me->mps.devices |= 1u << list[i];
    }
    me->mps.uid = getuid();
    me->mps.status = SIM_MPS_ACTIVE;
    if (ok) atomic_store(&me->mps.role, SIM_MPS_SERVER);
    sim_unlock(s);
    for (unsigned i = 0; ok && i < n; i++)
        ok = sim_charge(s, me, list[i], s->devices[list[i]].context_bytes);
    return ok;
}

// drop_root becomes the user whose clients come here.
static bool drop_root(void) {
    const char *text = getenv("SIMGPU_MPS_UID");
    uid_t uid = text ? (uid_t)strtoul(text, NULL, 10) : 0;
    return geteuid() != 0 || !uid || setresuid(uid, uid, uid) == 0;
}

// share makes the file that clients look for.
static bool share(struct mps_ready *ready) {
    struct mps_mark mark;
    char path[128];
    snprintf(ready->shared, sizeof ready->shared, "cuda.shm.%x.%x.1", (unsigned)getuid(), (unsigned)getpid());
    snprintf(path, sizeof path, MPS_SHARED "/%s", ready->shared);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return false;
    bool ok = mps_mark_of(&mark, ready->slot, ready->generation) && fchmod(fd, 0666) == 0 &&
              write(fd, &mark, sizeof mark) == sizeof mark;
    close(fd);
    return ok;
}

static bool clients_left(struct sim_state *s, struct sim_client *me) {
    sim_lock(s);
    sim_reap(s);
    unsigned n = sim_mps_clients(s, me);
    sim_unlock(s);
    return n > 0;
}

// serve returns when it is time to end.
static void serve(struct sim_state *s, struct sim_client *me) {
    struct pollfd fd = {3, POLLIN, 0};
    bool draining = false;
    while (!draining || clients_left(s, me)) {
        char how;
        if (poll(&fd, 1, draining ? 20 : -1) <= 0) continue;
        ssize_t n = recv(3, &how, 1, 0);
        if (n == 1 && how == MPS_END) return;
        draining = true;
        if (n <= 0) fd.fd = -1;  // the control daemon is gone
    }
}

int main(int argc, char **argv) {
    const char *dir = getenv("CUDA_MPS_LOG_DIRECTORY");
    char name[128];
    unsigned list[SIM_MAX_DEVICES];
    struct sim_state *s = sim_open();
    snprintf(mps.log_dir, sizeof mps.log_dir, "%s", dir ? dir : "/var/log/nvidia-mps");
    snprintf(name, sizeof name, "%s%sserver.log", argc > 1 ? argv[1] : "", argc > 1 ? "/" : "");
    log_open(name, "Server");
    if (argc > 1 && strcmp(argv[1], "-v") == 0) {
        printf("CUDA MPS Server binary version: %d\n", s ? s->cuda_version : 0);
        return 0;
    }
    log_line("Startup");
    if (!drop_root()) return 1;
    unsigned n = s ? devices_of(s, getenv("CUDA_VISIBLE_DEVICES"), list) : 0;
    uint32_t mask = 0;
    for (unsigned i = 0; i < n; i++) mask |= 1u << list[i];
    if (!n || sim_planted(s, mask, SIM_NO_START)) {
        log_line("Failed to start : no CUDA-capable device is detected");
        return 1;
    }
    struct sim_client *me = sim_attach(s);
    if (!me || !occupy(s, me, list, n)) {
        log_line("Failed to start : all CUDA-capable devices are busy or unavailable");
        if (me) sim_detach(s, me);
        return 1;
    }
    struct mps_ready ready = {.slot = (uint32_t)(me - s->clients), .generation = atomic_load(&me->generation)};
    bool shares = share(&ready);
    if (!shares) log_line("Failed to start : no file in " MPS_SHARED);
    if (shares && send(3, &ready, sizeof ready, MSG_NOSIGNAL) == sizeof ready) {
        log_line("Server has started");
        serve(s, me);
    }
    mps_unshare(ready.shared);
    sim_detach(s, me);
    log_line("Exit");
    return 0;
}
