// SPDX-License-Identifier: Apache-2.0
//
// mps.h: what the files of nvidia-cuda-mps-control share.
//
// Invariants:
// - One thread, one loop (daemon.c). A command is answered before the next one of
//   anybody is read; only clients wait, for their server.
// - What a client is limited to is in its server's namespaces: legacy servers have
//   one, without a name; the others' first one is "default".
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
    bool deleted;  // forgotten at its process's end
    char name[65];
    uid_t uid;
    pid_t pid;  // 0 while it doesn't run
    int fd;     // to the process
    int listener;
    uint32_t slot, generation;  // once ready
    char shared[48];            // its file in MPS_SHARED
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
    unsigned protocol;  // 2 is the legacy interface
    bool foreground, multiuser, quitting;
    bool failed;  // a server did not end well, nor does the daemon then
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

// main.c: the driver's branch, 0 without a machine.
unsigned branch(void);

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
struct server *legacy_server(const char *pid, struct reply *r);

// legacy_limits.c
bool may_set(struct reply *r, const char *what);
void legacy_set_default_percent(char **w, struct reply *r);
void legacy_get_default_percent(char **w, struct reply *r);
void legacy_set_server_percent(char **w, struct reply *r);
void legacy_get_server_percent(char **w, struct reply *r);
void legacy_set_default_limit(char **w, struct reply *r);
void legacy_get_default_limit(char **w, struct reply *r);
void legacy_set_server_limit(char **w, struct reply *r);
void legacy_get_server_limit(char **w, struct reply *r);

// cli.c
int cli_lines(const char *dir);
int cli_command(const char *dir, int argc, char **argv);

// v3.c: commands of protocol 3, "module verb arguments".
struct args {
    const char *words[3];  // positional, NULL where there are fewer
    struct {
        const char *key, *value;
    } options[8];
    unsigned option_count;
    uid_t uid;  // who asks
};
bool v3_command(char *packet, size_t length, uid_t uid, struct reply *r);
const char *option(const struct args *a, const char *key);
bool flag(const struct args *a, const char *key);
bool is_field(const char *given, const char *field);
bool good_name(const char *name, struct reply *r);
bool owns(const struct server *v, const struct args *a, const char *what, struct reply *r);
struct server *server_named(const char *name, struct reply *r);
unsigned server_client_count(struct server *v, const struct space *space);

// v3_server.c
void v3_server(const char *verb, const struct args *a, struct reply *r);
struct server *v3_add_server(const char *name, uid_t uid);
void v3_forget(struct server *v);
const char *v3_status(struct server *v);

// v3_space.c
void v3_space(const char *verb, const struct args *a, struct reply *r);
struct space *space_add(struct server *v, const char *name);
void space_remove(struct server *v, struct space *space);
bool space_set(struct space *space, const struct args *a, struct reply *r);

// v3_client.c
void v3_client(const char *verb, const struct args *a, struct reply *r);

// table.c: rows of cells as a table or as comma-separated values.
struct table {
    struct reply *r;
    bool csv, header;
    unsigned columns, widths[8];
};
bool table_begin(struct table *t, const struct args *a, struct reply *r, const char *const names[],
                 const unsigned widths[], unsigned columns);
void table_row(struct table *t, const char *const cells[]);

#endif
