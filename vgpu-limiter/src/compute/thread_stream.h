// SPDX-License-Identifier: Apache-2.0
//
// A thread's ways into streams, its lanes, which pay for most launches without a lock, an atomic operation on anything
// shared, or a look at the clock.

#ifndef VGPU_TRACK_H
#define VGPU_TRACK_H

#include "compute/stream_state.h"

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

// Tells what the thread's lanes have launched; they are nobody's from then on.
void vgpu_thread_settle(void);

#endif
