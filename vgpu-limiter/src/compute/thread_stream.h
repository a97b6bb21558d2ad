// SPDX-License-Identifier: Apache-2.0
//
// A thread stream is one thread's view of one stream. It pays for most launches without a
// lock, an atomic operation on anything shared, or a look at the clock.

#ifndef VGPU_THREAD_STREAM_H
#define VGPU_THREAD_STREAM_H

#include "compute/stream_state.h"
#include "compute/timeshare.h"

// What a launch takes off what its thread stream may launch, in one word of four parts, none of
// which an allowance overflows: a launch is paid for by one comparison and one subtraction,
// and what has been launched is charged in one step, of however many classes it was.
#define VGPU_TIME_BITS 18 // bits of a time, ns
#define VGPU_COUNT_BITS 8 // bits of the number of launches
#define VGPU_SPENT ((UINT64_C(1) << (VGPU_COUNT_BITS + 2 * VGPU_TIME_BITS)) - 1) // all but the highest part
_Static_assert(VGPU_BATCH_NS < 1 << VGPU_TIME_BITS && 2 * VGPU_BATCH_LAUNCHES <= 1 << VGPU_COUNT_BITS &&
                   VGPU_COUNT_BITS + 3 * VGPU_TIME_BITS < 64, "an allowance's parts");

static inline uint64_t vgpu_parts(uint64_t left, uint64_t over, uint64_t each, uint64_t count) {
    return ((left << VGPU_TIME_BITS | over) << VGPU_TIME_BITS | each) << VGPU_COUNT_BITS | count;
}

// A class of launches that a thread stream can pay for: programs make launches of many
// classes in turn. Four of them are a cache line, and no launch writes to it.
struct vgpu_launch_class {
    uint64_t name;  // the key and whose it is (vgpu_launch_class_name); 0 for none
    uint64_t price; // vgpu_parts; more than any allowance if it takes longer than a batch
};

#define VGPU_THREAD_STREAMS 4
#define VGPU_LAUNCH_CLASSES 512 // of a thread
#define VGPU_LAUNCH_CLASS_WAYS 8 // two cache lines of them
#define VGPU_LAUNCH_CLASS_WORDS (VGPU_LAUNCH_CLASSES / 64)

struct vgpu_thread_stream {
    cu_stream stream; // the driver's handle, with one of its own for each kind of default stream; NULL for none
    cu_ctx ctx;       // the stream's
    unsigned epoch;   // good while no stream or context has died since
    // Of the next allowance; not measured last; the context's.
    uint32_t size : 23, freed : 1, device : 8;
    uint64_t left;    // of the allowance (vgpu_parts); 0 without one
    uint64_t first;   // the class that it was given for
    uint64_t names;   // sum of the names launched by it: a multiple of the first if there were no others
    uint64_t learned; // costs.learned of the context when the classes' prices were read last
    struct vgpu_stream_state *state; // NULL: the device has no quota
    uint64_t classes[VGPU_LAUNCH_CLASS_WORDS]; // which of the thread's are its own, a bit each
} __attribute__((aligned(64)));

// What a thread launches by. It is not itself thread-local memory, which the C library takes
// from every thread's stack, in programs without CUDA as well, and doesn't have where
// LD_AUDIT is set.
struct vgpu_tls {
    struct vgpu_thread_stream streams[VGPU_THREAD_STREAMS];
    struct vgpu_launch_class classes[VGPU_LAUNCH_CLASSES] __attribute__((aligned(64)));
};

// Never NULL: until the thread's first launch that is to be measured it is empty and
// read-only.
extern _Thread_local struct vgpu_tls *vgpu_tls __attribute__((tls_model("initial-exec")));

// Tells the classes of one thread stream from those of the thread's others. Keys are odd,
// thread streams aligned; the same with the name gives the key.
static inline uint64_t vgpu_launch_class_name(const struct vgpu_thread_stream *thread, uint64_t key) {
    return key ^ (uintptr_t)thread;
}

// A name's place, if that is free or its own when it comes; else it is in another one nearby.
static inline struct vgpu_launch_class *vgpu_launch_class_place(uint64_t name) {
    return &vgpu_tls->classes[name >> 1 & (VGPU_LAUNCH_CLASSES - 1)];
}

// Where the name is, or NULL.
static inline struct vgpu_launch_class *vgpu_launch_class_of(uint64_t name) {
    unsigned first = (unsigned)(name >> 1 & (VGPU_LAUNCH_CLASSES - 1));
    for (unsigned way = 0; way < VGPU_LAUNCH_CLASS_WAYS; way++)
        if (vgpu_tls->classes[first ^ way].name == name)
            return &vgpu_tls->classes[first ^ way];
    return NULL;
}

static inline struct vgpu_thread_stream *vgpu_thread_stream_of(cu_stream stream) {
    uintptr_t bits = (uintptr_t)stream;
    return &vgpu_tls->streams[(bits >> 4 ^ bits >> 8) % VGPU_THREAD_STREAMS];
}

#define VGPU_DEFAULT_THREAD_STREAM (&vgpu_tls->streams[0]) // of the default streams

// Reports whether the thread stream is this stream's, and good.
static inline bool vgpu_thread_stream_is(const struct vgpu_thread_stream *thread, cu_stream stream) {
    if (thread->stream != stream || thread->epoch != vgpu_epoch())
        return false;
    cu_ctx ctx; // only handles of streams that were created say which context is theirs
    return stream > VGPU_PER_THREAD ||
           (VGPU_REAL(cuCtxGetCurrent)(&ctx) == CU_OK && ctx == thread->ctx);
}

// Makes vgpu_thread_stream_of(stream) this stream's, with its state. CU_OK, or why that
// isn't possible.
cu_result vgpu_thread_stream_open(struct vgpu_process *process, cu_stream stream);

// Can pay for launches of this class from now on, if its cost is known.
bool vgpu_thread_stream_learn(struct vgpu_thread_stream *thread, uint64_t key);

// Reads again what the classes that it can pay for cost, where that has changed. Under the
// context state's lock.
void vgpu_thread_stream_learn_all(struct vgpu_thread_stream *thread);

// Gives an allowance of device time, of at most a batch, for launches such as this.
void vgpu_thread_stream_allow(struct vgpu_thread_stream *thread, uint64_t key, uint64_t ns);

// Charges what was launched by the allowance. Under the context state's lock.
void vgpu_thread_stream_settle(struct vgpu_thread_stream *thread, const struct vgpu_turn *turn, uint64_t now);

// Charges what all of the thread's have launched; they belong to no stream from then on.
void vgpu_thread_settle(void);

#endif
