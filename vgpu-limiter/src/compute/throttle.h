// SPDX-License-Identifier: Apache-2.0
//
// Launches that are limited: most are paid for by their thread stream; the others
// measure, pay and wait.

#ifndef VGPU_THROTTLE_H
#define VGPU_THROTTLE_H

#include "compute/thread_stream.h"
#include "compute/token_bucket.h"

// One launch that its thread stream could not pay for. Filled by vgpu_launch_begin.
struct vgpu_launch {
    struct vgpu_thread_stream *thread; // NULL: not measured
    uint64_t key, like, now;
    struct vgpu_turn turn; // when it began, or has waited last
    struct vgpu_price price;
    struct vgpu_queue queue;
    struct vgpu_waiting *place; // among those of its context that wait, or NULL
    uint64_t batch;  // when the one began that it is in, while the lock isn't held
    uint64_t looked; // for how long it has waited for measurements, ns
    cu_stream stream; // as the program named it
    cu_ctx context; // the stream's, where that isn't the current one
    bool per_thread, by_itself, unknown, unsure;
    bool freed; // the last neighbour with a quota has gone
    bool refused; // the counters are damaged
    int capture_mode;
};

// The stream that a handle names: default streams have several names.
static inline cu_stream vgpu_stream(cu_stream stream, bool per_thread) {
    return vgpu_likely(stream != NULL) ? stream : per_thread ? VGPU_PER_THREAD : VGPU_LEGACY;
}

// Reports whether launches of this process are limited at all: the hot path's only
// question where they aren't.
static inline bool vgpu_launch_limited(void) {
    struct vgpu_process *process = atomic_load_explicit(&vgpu_process_page, memory_order_acquire);
    return vgpu_unlikely(process != NULL && process->launches.limited != NULL && vgpu_load(process->launches.limited) != 0);
}

// Pays for a launch of this class from a thread stream that is the stream's.
static inline bool vgpu_launch_class_pays(struct vgpu_thread_stream *thread, struct vgpu_launch_class *class,
                                          uint64_t name) {
    uint64_t left = thread->left, price = class->price;
    if (vgpu_unlikely(class->name != name || left < price ||
                      atomic_load_explicit(&vgpu_process_page, memory_order_relaxed)->launches.captures != 0))
        return false;
    thread->left = left - price;
    thread->names += name;
    return true;
}

// The hot path where launches are limited: the first place of the class, on a stream
// that was created, or one that is known to be the current context's.
static inline bool vgpu_thread_stream_pays(struct vgpu_thread_stream *thread, uint64_t key, cu_stream stream) {
    uint64_t name = vgpu_launch_class_name(thread, key);
    return vgpu_likely(thread->stream == stream && thread->epoch == vgpu_epoch()) &&
           vgpu_launch_class_pays(thread, vgpu_launch_class_place(name), name);
}

// The same for its other places.
static inline bool vgpu_thread_stream_pays_elsewhere(struct vgpu_thread_stream *thread, uint64_t key, cu_stream stream) {
    uint64_t name = vgpu_launch_class_name(thread, key);
    if (thread->stream != stream || thread->epoch != vgpu_epoch())
        return false;
    struct vgpu_launch_class *class = vgpu_launch_class_of(name);
    return class != NULL && vgpu_launch_class_pays(thread, class, name);
}

// The same for any place and any stream. False: the launch is to be begun and ended.
static inline bool vgpu_launch_paid(uint64_t key, cu_stream handle, bool per_thread) {
    cu_stream stream = vgpu_stream(handle, per_thread);
    struct vgpu_thread_stream *thread = vgpu_thread_stream_of(stream);
    uint64_t name = vgpu_launch_class_name(thread, key);
    struct vgpu_launch_class *class = vgpu_thread_stream_is(thread, stream) ? vgpu_launch_class_of(name) : NULL;
    return class != NULL && vgpu_launch_class_pays(thread, class, name);
}

// Waits until the container's bucket allows the launch, and prepares to measure
// it. `like` is the key of launches that may cost as much, if this class has never
// been measured, or 0. A launch that a stream capture will record is neither.
// CU_OUT_OF_MEMORY: tracking state can't be allocated; CU_NOT_PERMITTED: the counters are
// damaged. Then it must not be made.
cu_result vgpu_launch_begin(struct vgpu_launch *launch, uint64_t key, uint64_t like, cu_stream stream,
                            bool per_thread);
void vgpu_launch_end(struct vgpu_launch *launch, cu_result result);

// Instead of vgpu_launch_end, around a call that may wait for the device, so that
// other threads' launches don't wait for it, too: before it, and after it.
void vgpu_launch_part(struct vgpu_launch *launch);
void vgpu_launch_rejoin(struct vgpu_launch *launch);

// Ends the function that it is in with the launch that follows: its cost is learned
// under `key`, and at first guessed from `like`.
#define VGPU_LIMITED(key, like, stream, per_thread, ...)             \
    do {                                                             \
        if (!vgpu_launch_limited())                                  \
            return __VA_ARGS__;                                      \
        uint64_t key_ = key;                                         \
        if (vgpu_likely(vgpu_launch_paid(key_, stream, per_thread))) \
            return __VA_ARGS__;                                      \
        struct vgpu_launch launch;                                   \
        cu_result result = vgpu_launch_begin(&launch, key_, like, stream, per_thread); \
        if (vgpu_unlikely(result != CU_OK))                          \
            return result;                                           \
        result = __VA_ARGS__;                                        \
        vgpu_launch_end(&launch, result);                            \
        return result;                                               \
    } while (0)

#endif
