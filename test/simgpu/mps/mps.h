// SPDX-License-Identifier: Apache-2.0
//
// mps.h: what the files of nvidia-cuda-mps-control share.
//
// Invariants:
// - One thread, one loop (daemon.c). A command is answered before the next one of
//   anybody is read; only clients wait, for their server.
// - What a client is limited to is in its server's namespaces: legacy servers have
//   one, without a name.
// - Who is whose client is in the state file, not here: the daemon can't be told of
//   a client that is gone.
#ifndef VERNIER_SIMGPU_MPS_MPS_H
#define VERNIER_SIMGPU_MPS_MPS_H

#include "wire.h"

#include <stdio.h>
#include <sys/types.h>

#define MPS_SERVERS 16
#define MPS_SPACES 64
#define MPS_DEFAULTS 32
#define MPS_CONNS 256

struct space {
    bool used;
    char name[65];
    double percent;
    uint64_t pinned[SIM_MAX_DEVICES];  // by index in the state file; 0 is no limit
    int priority, listener;            // listener: its socket, -1 for none
};

struct server {
    bool used, ready, draining;
    char name[65];
    uid_t uid;
    pid_t pid;  // 0 while it doesn't run
    int fd;     // to the process
    int listener;
    uint32_t slot, generation;  // once ready
    unsigned devices[SIM_MAX_DEVICES], device_count;
    struct space spaces[MPS_SPACES];
};

// Someone connected: a command line that sends commands, or a client that waits for
// its server.
struct conn {
    int fd;  // -1: free
    bool privileged, waiting;
    bool quits;  // its answer is the daemon's end
    struct server *server;  // of the socket that it came by, if that is one's own
    struct space *space;
    pid_t pid;
    uid_t uid;
    struct mps_hello hello;
};

// A limit for servers yet to start: for whatever device the name will mean.
struct mps_default {
    char device[64];
    uint64_t bytes;
};

struct control {
    struct sim_state *s;
    char dir[108], log_dir[256];
    unsigned protocol;
    bool foreground, multiuser, partitioning, quitting;
    unsigned devices[SIM_MAX_DEVICES], device_count;  // as CUDA_VISIBLE_DEVICES says
    uint32_t mask;                                    // the same, one bit each
    double percent;                                   // defaults of servers to come
    int priority;
    struct mps_default defaults[MPS_DEFAULTS];
    unsigned default_count;
    struct server servers[MPS_SERVERS];
    struct conn conns[MPS_CONNS];
};

extern struct control mps;

// A reply grows until it is sent; bad makes the command line's exit status 1.
struct reply {
    bool bad;
    size_t length;
    char text[MPS_PACKET - 1];
};
void say(struct reply *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
void refuse(struct reply *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

// log.c
void log_open(const char *name, const char *who);
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

// devices.c
unsigned devices_of(struct sim_state *s, const char *visible, unsigned list[SIM_MAX_DEVICES]);
int device_named(struct sim_state *s, const unsigned list[], unsigned n, const char *name);
void device_uuid(struct sim_state *s, unsigned dev, char *text, size_t length);
void size_text(uint64_t bytes, char *text, size_t length);

// daemon.c
int daemon_main(int ready);
int listen_at(const char *dir, const char *name, mode_t mode);

// servers.c
struct server *server_add(const char *name, uid_t uid);
bool server_start(struct server *v);
void server_end(struct server *v, char how);
void server_ready(struct server *v);
void servers_reap(void);
struct server *server_by_pid(const char *pid);
struct sim_client *server_slot(struct server *v);
const char *server_status(struct server *v);

// clients.c
void client_hello(struct conn *c);
void clients_retry(void);
void clients_fail(struct server *v);
struct sim_client *client_by_pid(struct server *v, pid_t pid);
void each_client(struct server *v, void (*visit)(struct sim_client *, pid_t, void *), void *arg);

// legacy.c: a command of the legacy interface. True when its reply has to wait
// until all servers are gone.
bool legacy_command(char *line, struct reply *r);

// cli.c
int cli_lines(const char *dir);

#endif
