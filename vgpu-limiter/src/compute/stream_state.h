// SPDX-License-Identifier: Apache-2.0
//
// What is known of a stream's launches and of its context's.

#ifndef VGPU_STREAM_STATE_H
#define VGPU_STREAM_STATE_H

#include "compute/cost.h"
#include "compute/slowdown.h"
#include "runtime/process.h"

#define VGPU_BATCHES 8
#define VGPU_BATCH_NS 250000u // expected device time of a batch of several launches
#define VGPU_BATCH_LAUNCHES 128
#define VGPU_SMALLEST_STEP (VGPU_BATCH_NS / VGPU_BATCH_LAUNCHES)

// Launches of one stream between two events.
struct vgpu_batch {
    cu_event start, end;
    uint64_t opened, closed; // clock before start was recorded, before end was
    uint64_t gap;            // how long before its launch start was surely recorded
    uint64_t key;            // of all its launches; 0 if they differ
    uint64_t launches, expected; // what they were charged, ns
    uint64_t over;           // how much more they may take, as far as is known, ns
    uint64_t like;           // of a single launch: what else may cost as much
    bool queued;             // start wasn't reached when end was recorded
    bool unknown;            // its launch was charged nothing, for want of knowledge
    bool unsure;             // its launch is one of the first of its class
    uint64_t from, until;    // the turn in which it began; 0 for none
    bool apart;              // no other stream had any under way when it began
};

// A launch that waits for the bucket.
struct vgpu_waiting {
    uint64_t since, looked; // when it began to, and looked last; 0 for none
};
#define VGPU_WAITING 16

// The streams of one context, whose events can be compared.
struct vgpu_ctx_state {
    struct vgpu_lock lock; // held from before a measured launch until after it; waits release it
    cu_event anchor;       // an event on the device ...
    uint64_t anchored;     // ... and the clock when it was passed
    bool beside;           // others worked on the device when it was measured last
    bool turns;            // there were turns when that was looked at last ...
    uint64_t turned;       // ... and since when that has been so
    bool rough;            // what is known to be the longest launch was measured beside others
    unsigned under_way;    // batches of all streams that aren't measured yet
    struct vgpu_stream_state *unsure; // has one among them that is one of the first of its class
    struct vgpu_stream_state *destroyed; // the last in the ring of destroyed streams (destroyed_streams.c)
    unsigned ends;         // so many are in there
    atomic_bool unmeasured; // a stream has ended with launches that nobody measures, or not well
    unsigned streams;      // that have begun, under launches.stream_lock ...
    atomic_bool measures;  // ... and whether launches of the next ones are measured for those
    struct vgpu_waiting waiting[VGPU_WAITING]; // of its launches so many
    struct vgpu_costs costs;
    struct vgpu_slowdown slowdown;
};

struct vgpu_stream_state {
    struct vgpu_process *process;
    struct vgpu_ctx_state *ctx_state;
    struct vgpu_stream_state *next; // in the ring of destroyed streams
    int device;
    bool open;               // a batch has a start and no end yet
    bool ends;               // its stream is about to be destroyed, or was
    unsigned probes;         // so many of the next launches are to be measured by themselves
    uint64_t over;           // of the batches that aren't measured yet
    uint64_t moved;          // by how much the container was said to work longer, while one of them was late
    unsigned batches;        // since the last one that was
    unsigned first, pending; // ring of batches that have ended; the open one comes after them
    struct vgpu_batch ring[VGPU_BATCHES + 1];
};

static inline struct vgpu_batch *vgpu_batch_open(struct vgpu_stream_state *state) {
    return &state->ring[(state->first + state->pending) % (VGPU_BATCHES + 1)];
}

#define VGPU_LEGACY ((cu_stream)1)
#define VGPU_PER_THREAD ((cu_stream)2)

// The stream's key in the process's table. A default stream's is of the context and, for
// VGPU_PER_THREAD, of the calling thread.
uint64_t vgpu_stream_key(cu_stream stream, cu_ctx ctx);

// The stream's stream state, which is made on first use. NULL if there is no memory.
struct vgpu_stream_state *vgpu_stream_find(struct vgpu_process *process, cu_stream stream,
                                           const struct vgpu_here *here);

#endif
