// SPDX-License-Identifier: Apache-2.0
//
// Launches that are limited: most are paid for by their thread's lane; the others
// measure, pay and wait.

#ifndef VGPU_COMPUTE_H
#define VGPU_COMPUTE_H

#include "compute/thread_stream.h"
#include "compute/token_bucket.h"

// One launch that its lane could not pay for. Filled by vgpu_launch_begin.
struct vgpu_launch {
    struct vgpu_lane *lane; // NULL: not measured
    uint64_t key, like, now;
    struct vgpu_price price;
    struct vgpu_queue queue;
    struct vgpu_waiting *place; // among its timeline's that wait, or NULL
    uint64_t batch;  // when the one began that it is in, while the lock isn't held
    uint64_t looked; // for how long it has waited for measurements, ns
    cu_stream stream; // as the program named it
    cu_ctx context; // the stream's, where that isn't the current one
    bool per_thread, by_itself, unknown, unsure;
    bool freed; // the last neighbour with a quota has gone
    int capture_mode;
};

// The stream that a handle names: default streams have several names.
static inline cu_stream vgpu_stream(cu_stream stream, bool per_thread) {
    return vgpu_likely(stream != NULL) ? stream : per_thread ? VGPU_PER_THREAD : VGPU_LEGACY;
}

// Whether launches of this process are limited at all: the hot path's only
// question where they aren't.
static inline bool vgpu_launch_limited(void) {
    struct vgpu_process *process = atomic_load_explicit(&vgpu_process_page, memory_order_acquire);
    return vgpu_unlikely(process != NULL && process->limited != NULL && vgpu_load(process->limited) != 0);
}

// Pays for a launch of this kind from a lane that is the stream's.
static inline bool vgpu_kind_pays(struct vgpu_lane *lane, struct vgpu_kind *kind, uint64_t name) {
    uint64_t left = lane->left, price = kind->price;
    if (vgpu_unlikely(kind->name != name || left < price ||
                      atomic_load_explicit(&vgpu_process_page, memory_order_relaxed)->captures != 0))
        return false;
    lane->left = left - price;
    lane->names += name;
    return true;
}

// The hot path where launches are limited: the first place of the kind, on a stream
// that was created, or one that is known to be the current context's.
static inline bool vgpu_lane_pays(struct vgpu_lane *lane, uint64_t key, cu_stream stream) {
    uint64_t name = vgpu_kind_name(lane, key);
    return vgpu_likely(lane->stream == stream && lane->epoch == vgpu_epoch()) &&
           vgpu_kind_pays(lane, vgpu_kind_place(name), name);
}

// The same for its other places.
static inline bool vgpu_lane_pays_elsewhere(struct vgpu_lane *lane, uint64_t key, cu_stream stream) {
    uint64_t name = vgpu_kind_name(lane, key);
    if (lane->stream != stream || lane->epoch != vgpu_epoch())
        return false;
    struct vgpu_kind *kind = vgpu_kind_of(name);
    return kind != NULL && vgpu_kind_pays(lane, kind, name);
}

// The same for any place and any stream. False: the launch is to be begun and ended.
static inline bool vgpu_launch_paid(uint64_t key, cu_stream handle, bool per_thread) {
    cu_stream stream = vgpu_stream(handle, per_thread);
    struct vgpu_lane *lane = vgpu_lane_of(stream);
    uint64_t name = vgpu_kind_name(lane, key);
    struct vgpu_kind *kind = vgpu_lane_is(lane, stream) ? vgpu_kind_of(name) : NULL;
    return kind != NULL && vgpu_kind_pays(lane, kind, name);
}

// Waits until the container's bucket allows the launch, and prepares to measure
// it. `like` is the key of launches that may cost as much, if this kind has never
// been measured, or 0. A launch that a stream capture will record is neither.
// CU_OUT_OF_MEMORY: there is no memory to limit it with, and it must not be made.
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
