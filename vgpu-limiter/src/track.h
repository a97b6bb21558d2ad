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
#define VGPU_SMALLEST_STEP (VGPU_BATCH_NS / VGPU_BATCH_LAUNCHES)

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

// A launch that waits for the bucket.
struct vgpu_waiting {
    uint64_t since, looked; // when it began to, and looked last; 0 for none
};
#define VGPU_WAITING 16

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
    struct vgpu_track *ended; // the last one in the ring of those whose streams have ended (ended.c)
    unsigned ends;         // so many are in there
    atomic_bool unmeasured; // a stream has ended with launches that nobody measures, or not well
    unsigned streams;      // that have begun, under track_lock ...
    atomic_bool measures;  // ... and whether launches of the next ones are measured for those
    struct vgpu_waiting waiting[VGPU_WAITING]; // of its launches so many
    struct vgpu_costs costs;
};

struct vgpu_track {
    struct vgpu_process *process;
    struct vgpu_timeline *timeline;
    struct vgpu_track *next; // in the ring of those whose streams have ended
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

// What a launch takes off what its lane may launch, in one word of four parts, none of
// which an allowance overflows: a launch is paid for by one comparison and one subtraction,
// and what a lane has launched is told in one step, of however many kinds it was.
#define VGPU_TIME_BITS 18 // bits of a time, ns
#define VGPU_COUNT_BITS 8 // bits of the number of launches
#define VGPU_SPENT ((UINT64_C(1) << (VGPU_COUNT_BITS + 2 * VGPU_TIME_BITS)) - 1) // all but the highest part
_Static_assert(VGPU_BATCH_NS < 1 << VGPU_TIME_BITS && 2 * VGPU_BATCH_LAUNCHES <= 1 << VGPU_COUNT_BITS &&
                   VGPU_COUNT_BITS + 3 * VGPU_TIME_BITS < 64, "an allowance's parts");

static inline uint64_t vgpu_parts(uint64_t left, uint64_t over, uint64_t each, uint64_t count) {
    return ((left << VGPU_TIME_BITS | over) << VGPU_TIME_BITS | each) << VGPU_COUNT_BITS | count;
}

// A kind of launch that a lane can pay for: programs make many kinds in turn. Four of them
// are a cache line, and no launch writes to it.
struct vgpu_kind {
    uint64_t name;  // the key and whose it is (vgpu_kind_name); 0 for none
    uint64_t price; // vgpu_parts; more than any lane has left if it takes longer than a batch
};

#define VGPU_LANES 4
#define VGPU_KINDS 512 // of all lanes of a thread
#define VGPU_KIND_WAYS 8 // two cache lines of them
#define VGPU_KIND_WORDS (VGPU_KINDS / 64)

// One thread's way into one stream.
struct vgpu_lane {
    cu_stream stream; // as the driver's handle, default streams told apart; NULL for none
    cu_ctx ctx;       // the stream's
    unsigned epoch;   // good while no stream or context has died since
    // Of the next allowance; not measured last; the context's.
    uint32_t size : 23, freed : 1, device : 8;
    uint64_t left;    // of the allowance (vgpu_parts); 0 without one
    uint64_t first;   // the kind that it was given for
    uint64_t names;   // the sum of those that were launched by it: so many times the first, if there were no others
    uint64_t learned; // what the timeline's costs had learned when the kinds' prices were looked at last
    struct vgpu_track *track; // NULL: the device has no quota
    uint64_t kinds[VGPU_KIND_WORDS]; // which of the thread's are the lane's, a bit each
} __attribute__((aligned(64)));

// What a thread launches by. It is not itself thread-local memory, which the C library takes
// from every thread's stack, in programs without CUDA as well, and doesn't have where
// LD_AUDIT is set.
struct vgpu_ways {
    struct vgpu_lane lanes[VGPU_LANES];
    struct vgpu_kind kinds[VGPU_KINDS] __attribute__((aligned(64)));
};

// Never NULL: until the thread's first launch that is to be measured they are nobody's,
// empty and read-only.
extern _Thread_local struct vgpu_ways *vgpu_ways __attribute__((tls_model("initial-exec")));

// Tells a lane's kinds from those of the thread's others. Keys are odd, lanes aligned; the
// same with the name gives the key.
static inline uint64_t vgpu_kind_name(const struct vgpu_lane *lane, uint64_t key) {
    return key ^ (uintptr_t)lane;
}

// A name's place, if that is free or its own when it comes; else it is in another one nearby.
static inline struct vgpu_kind *vgpu_kind_place(uint64_t name) {
    return &vgpu_ways->kinds[name >> 1 & (VGPU_KINDS - 1)];
}

// Where the name is, or NULL.
static inline struct vgpu_kind *vgpu_kind_of(uint64_t name) {
    unsigned first = (unsigned)(name >> 1 & (VGPU_KINDS - 1));
    for (unsigned way = 0; way < VGPU_KIND_WAYS; way++)
        if (vgpu_ways->kinds[first ^ way].name == name)
            return &vgpu_ways->kinds[first ^ way];
    return NULL;
}

#define VGPU_LEGACY ((cu_stream)1)
#define VGPU_PER_THREAD ((cu_stream)2)

static inline struct vgpu_lane *vgpu_lane_of(cu_stream stream) {
    uintptr_t bits = (uintptr_t)stream;
    return &vgpu_ways->lanes[(bits >> 4 ^ bits >> 8) % VGPU_LANES];
}

#define VGPU_DEFAULT_LANE (&vgpu_ways->lanes[0]) // of the default streams

// Whether the lane is this stream's, and good.
static inline bool vgpu_lane_is(const struct vgpu_lane *lane, cu_stream stream) {
    if (lane->stream != stream || lane->epoch != vgpu_epoch())
        return false;
    cu_ctx ctx; // only handles of streams that were created say which context is theirs
    return stream > VGPU_PER_THREAD ||
           (VGPU_REAL(cuCtxGetCurrent)(&ctx) == CU_OK && ctx == lane->ctx);
}

// Makes a lane of the thread, vgpu_lane_of from then on, this stream's, with its track. CU_OK,
// or why that isn't possible.
cu_result vgpu_lane_open(struct vgpu_process *process, cu_stream stream);

// The lane can pay for launches of this kind from now on, if it is known.
bool vgpu_lane_learn(struct vgpu_lane *lane, uint64_t key);

// What has been learned meanwhile of the kinds that the lane can pay for. Under the
// timeline's lock.
void vgpu_lane_learn_all(struct vgpu_lane *lane);

// Gives the lane an allowance of device time, of at most a batch, for launches such as this.
void vgpu_lane_allow(struct vgpu_lane *lane, uint64_t key, uint64_t ns);

// Tells the lane's track what was launched by it. Under the timeline's lock.
void vgpu_lane_settle(struct vgpu_lane *lane, uint64_t now);

#endif
