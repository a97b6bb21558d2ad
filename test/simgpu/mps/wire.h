// SPDX-License-Identifier: Apache-2.0
//
// wire.h: what goes over the sockets of the simulated MPS, and how limits are
// written. Shared by libcuda, nvidia-cuda-mps-control and nvidia-cuda-mps-server.
//
// Invariants:
// - One packet (SOCK_SEQPACKET) is one message; a request has one reply.
// - NVIDIA's own packets are its secret: these look like them in nothing. What is
//   NVIDIA's are command lines, commands, replies' text, environment and files.
#ifndef VERNIER_SIMGPU_MPS_WIRE_H
#define VERNIER_SIMGPU_MPS_WIRE_H

#include "../state/state.h"

#define MPS_HELLO 0x53504d01u  // no text begins so
#define MPS_PACKET 65536

// A CUDA process that wants to become a client, and what it is given.
struct mps_hello {
    uint32_t magic, slot, generation;
};

struct mps_grant {
    uint32_t result;              // a CUresult
    uint32_t server, generation;  // its server's slot
    uint32_t count, devices[SIM_MAX_DEVICES];  // in the state file, in the server's order
    uint64_t pinned[SIM_MAX_DEVICES];          // by index in the state file; 0 is no limit
    double percent;
    char space[65];
    char shared[48];  // the server's file in MPS_SHARED
};

// A server tells the control daemon that it is ready, and is told to end.
struct mps_ready {
    uint32_t slot, generation;
    char shared[48];
};
enum { MPS_END = 'e', MPS_DRAIN = 'd' };

// Where a server has a file that each of its clients must find: as NVIDIA's, which share
// memory by files there, they are nobody's clients where that folder is another.
#define MPS_SHARED "/dev/shm"

// What is in the file: whose it is, in which simulated machine.
struct mps_mark {
    uint64_t device, inode;  // of the state file
    uint32_t slot, generation;
};

// mps_mark_of fills in a server's.
bool mps_mark_of(struct mps_mark *mark, uint32_t slot, uint32_t generation);

// mps_unshare removes the file.
void mps_unshare(const char *name);

// mps_dial connects to dir/name; -1 with errno.
int mps_dial(const char *dir, const char *name);

// mps_size reads an amount of memory, an integer and one of G, M, K (or GB, …).
bool mps_size(const char *text, uint64_t *bytes);

// mps_next_limit takes the next "device=size" off a list as in
// CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: 1, 0 at its end, -1 when it is none.
int mps_next_limit(char **rest, char **device, uint64_t *bytes);

// mps_percent reads a thread percentage, over 0 and up to 100.
bool mps_percent(const char *text, double *percent);

#endif
