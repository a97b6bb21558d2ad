// SPDX-License-Identifier: Apache-2.0
//
// What is known of a stream's launches, and the ways into it: a thread's lanes,
// which pay for most launches without a lock, an atomic operation on anything
// shared, or a look at the clock.

#ifndef VGPU_TRACK_H
#define VGPU_TRACK_H

#include "cost.h"
#include "process.h"

#define VGPU_BATCHES 8
#define VGPU_BATCH_NS 250000u // expected device time of a batch of several launches
#define VGPU_BATCH_LAUNCHES 128

// Launches of one stream between two events.
struct vgpu_batch {
    cu_event start, end;
    uint64_t opened, closed; // clock before start was recorded, before end was
    uint64_t gap;            // how long before its launch start was surely recorded
    uint64_t key;            // of all its launches; 0 if they differ
    uint64_t launches, expected; // what they were charged, ns
    uint64_t over;           // how much more they may take, as far as is known, ns
    uint64_t like;           // of a launch by itself: what else may cost as much
    bool queued;             // start wasn't reached when end was recorded
    bool unknown;            // its launch was charged nothing, for want of knowledge
    bool unsure;             // its launch is one of the first of its kind
    uint64_t from, until;    // the turn in which it began; 0 for none
    bool apart;              // no other stream had any under way when it began
};

// The streams of one context, whose events can be compared.
struct vgpu_timeline {
    struct vgpu_lock lock; // held from before a measured launch until after it; waits let go of it
    cu_event anchor;       // an event on the device ...
    uint64_t anchored;     // ... and the clock when it was passed
    bool beside;           // others worked on the device when it was measured last
    bool turns;            // there were turns when that was looked at last ...
    uint64_t turned;       // ... and since when that has been so
    bool rough;            // what is known to be the longest launch was measured beside others
    unsigned under_way;    // batches of all streams that aren't measured yet
    struct vgpu_track *unsure; // has one among them that is one of the first of its kind
    struct vgpu_costs costs;
};

struct vgpu_track {
    struct vgpu_process *process;
    struct vgpu_timeline *timeline;
    int device;
    bool open;               // a batch has a start and no end yet
    bool probe;              // the next launch is to be measured by itself
    uint64_t over;           // of the batches that aren't measured yet
    unsigned batches;        // since the last one that was
    unsigned first, pending; // ring of batches that have ended; the open one comes after them
    struct vgpu_batch ring[VGPU_BATCHES + 1];
};

// A kind of launch that a lane can pay for: programs make many kinds in turn.
struct vgpu_kind {
    uint64_t key;      // 0 for none
    uint32_t step;     // what a launch takes off what is left to the lane
    uint32_t launches; // not yet told to the track
    uint64_t each, over; // what one of them costs, and how much more it may
};

#define VGPU_LANES 4
#define VGPU_KINDS 64

// One thread's way into one stream.
struct vgpu_lane {
    cu_stream stream; // as the driver's handle, default streams told apart; NULL for none
    cu_ctx ctx;       // the stream's
    unsigned epoch;   // good while no stream or context has died since
    uint32_t left;    // device time that may be launched before the next look, ns
    uint32_t size;    // of the next allowance
    bool mixed;       // the launches that are none of its kinds' any more have several keys
    uint64_t spent, spent_over, count, key; // of these
    uint64_t kinds;   // which places have one, a bit each
    struct vgpu_track *track; // NULL: the device has no quota
    struct vgpu_kind kind[VGPU_KINDS];
} __attribute__((aligned(64)));

extern _Thread_local struct vgpu_lane vgpu_lanes[VGPU_LANES] __attribute__((tls_model("initial-exec")));

// Where a lane has launches of this key, if it has any: a key has this place and its
// neighbour.
static inline struct vgpu_kind *vgpu_kind_place(struct vgpu_lane *lane, uint64_t key) {
    return &lane->kind[key >> 1 & (VGPU_KINDS - 1)];
}
static inline struct vgpu_kind *vgpu_kind_of(struct vgpu_lane *lane, uint64_t key) {
    struct vgpu_kind *first = vgpu_kind_place(lane, key);
    return vgpu_likely(first->key == key) ? first : &lane->kind[(first - lane->kind) ^ 1];
}

// Puts what a kind has launched among what the lane has.
static inline void vgpu_kind_settle(struct vgpu_lane *lane, struct vgpu_kind *kind) {
    if (kind->launches == 0)
        return;
    lane->mixed |= lane->count != 0 && lane->key != kind->key;
    lane->key = kind->key;
    lane->spent += kind->launches * kind->each;
    lane->spent_over += kind->launches * kind->over;
    lane->count += kind->launches;
    kind->launches = 0;
}

#define VGPU_LEGACY ((cu_stream)1)
#define VGPU_PER_THREAD ((cu_stream)2)

static inline struct vgpu_lane *vgpu_lane_of(cu_stream stream) {
    uintptr_t bits = (uintptr_t)stream;
    return &vgpu_lanes[(bits >> 4 ^ bits >> 8) % VGPU_LANES];
}

#define VGPU_DEFAULT_LANE (&vgpu_lanes[0]) // of the default streams

// Whether the lane is this stream's, and good.
static inline bool vgpu_lane_is(const struct vgpu_lane *lane, cu_stream stream) {
    if (lane->stream != stream || lane->epoch != vgpu_epoch())
        return false;
    cu_ctx ctx; // only handles of streams that were created say which context is theirs
    return stream > VGPU_PER_THREAD ||
           (VGPU_REAL(cuCtxGetCurrent)(&ctx) == CU_OK && ctx == lane->ctx);
}

// Makes the lane this stream's, with its track. CU_OK, or why that isn't possible.
cu_result vgpu_lane_open(struct vgpu_process *process, struct vgpu_lane *lane, cu_stream stream);

// Tells the lane's track what was launched by it. Under the timeline's lock.
void vgpu_lane_settle(struct vgpu_lane *lane, uint64_t now);

#endif
