// SPDX-License-Identifier: Apache-2.0
//
// mps.c: this process as a client of the multi-process service.
//
// Invariants:
// - A pipe folder that leads to no daemon is no error: the program runs without
//   MPS and without its limits, as the real one does.
// - The environment only ever lowers what the daemon grants. A memory limit for a
//   device that the process doesn't see drops all of them, the daemon's too: that
//   is what the real one does.
// - Limits are in force before cuInit returns.
// - It is a client of the server whose file it finds in /dev/shm, or of none: there is no
//   way around MPS where a daemon answers.
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int dial(void) {
    const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (dir && *dir) return mps_dial(dir, "control");
    int fd = mps_dial("/tmp/nvidia-mps", "control");
    return fd < 0 ? mps_dial("/run/nvidia-mps", "control") : fd;
}

// shares tells whether the server's file is where this process looks.
static bool shares(const struct mps_grant *grant) {
    struct mps_mark want, got;
    char path[128];
    if (!mps_mark_of(&want, grant->server, grant->generation)) return false;
    snprintf(path, sizeof path, MPS_SHARED "/%s", grant->shared);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    bool same = read(fd, &got, sizeof got) == sizeof got && memcmp(&got, &want, sizeof got) == 0;
    close(fd);
    return same;
}

// mps_connect becomes a client of the daemon, if there is one: a grant without
// devices is no MPS.
CUresult mps_connect(struct mps_grant *grant) {
    memset(grant, 0, sizeof *grant);
    int fd = dial();
    if (fd < 0) return CUDA_SUCCESS;
    struct mps_hello hello = {MPS_HELLO, (uint32_t)(me - cu->clients), atomic_load(&me->generation)};
    ssize_t n = send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    while (n == sizeof hello && (n = recv(fd, grant, sizeof *grant, 0)) < 0 && errno == EINTR)
        n = sizeof hello;
    close(fd);
    if (n == sizeof *grant && (grant->result || shares(grant))) return (CUresult)grant->result;
    memset(grant, 0, sizeof *grant);
    return CUDA_ERROR_MPS_CONNECTION_FAILED;
}

// pinned applies the environment's memory limits; false if they name a device that
// this process doesn't see.
static bool pinned(const char *env, uint64_t limits[SIM_MAX_DEVICES]) {
    char list[4096], *rest = list, *name;
    uint64_t bytes;
    int more;
    if (!env || strlen(env) >= sizeof list) return true;
    strcpy(list, env);
    while ((more = mps_next_limit(&rest, &name, &bytes)) > 0) {
        int i = 0;
        while (i < ordinal_count && !is_named(&ordinals[i], (unsigned)i, name)) i++;
        if (i == ordinal_count) return false;
        uint64_t *limit = &limits[ordinals[i].dev];
        if (!*limit || bytes < *limit) *limit = bytes;
    }
    return more == 0;
}

// mps_limits enters what was granted, less what the environment says, into the slot.
CUresult mps_limits(const struct mps_grant *grant) {
    const char *threads = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    uint64_t limits[SIM_MAX_DEVICES];
    double percent = grant->percent, own;
    if (!grant->count) return CUDA_SUCCESS;
    if (threads && mps_percent(threads, &own) && own < percent) percent = own;
    memcpy(limits, grant->pinned, sizeof limits);
    if (!pinned(getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), limits)) memset(limits, 0, sizeof limits);
    sim_lock(cu);
    memcpy(me->mps.pinned, limits, sizeof limits);
    memcpy(me->mps.space, grant->space, sizeof me->mps.space);
    me->mps.server = grant->server;
    me->mps.generation = grant->generation;
    for (int i = 0; i < ordinal_count; i++) {
        struct sim_work *w = &me->work[ordinals[i].dev];
        if (percent >= 100) continue;
        w->sms = sim_sms(ordinals[i].m->sms, percent);
        w->rate = (uint32_t)((uint64_t)w->sms * SIM_RATE / ordinals[i].m->sms);
    }
    atomic_store(&me->mps.role, SIM_MPS_CLIENT);
    CUresult ret = sim_mps_server(cu, me) ? CUDA_SUCCESS : CUDA_ERROR_MPS_RPC_FAILURE;
    sim_unlock(cu);
    return ret;
}

// mps_room refuses one context more than the server takes of its clients.
CUresult mps_room(struct ordinal *o) {
    sim_lock(cu);
    struct sim_client *server = sim_mps_server(cu, me);
    unsigned most = cu->cuda_version >= 13010 ? 60 : 48;
    bool full = server && sim_mps_contexts(cu, server, o->dev) >= most;
    sim_unlock(cu);
    return full ? CUDA_ERROR_MPS_MAX_CLIENTS_REACHED : CUDA_SUCCESS;
}
