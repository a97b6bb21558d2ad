// SPDX-License-Identifier: Apache-2.0
//
// The bucket: one word, paid_until, the moment at which all device time charged
// so far is paid off at the quota.
//
// Invariants:
//   1. The clock refills it: nobody has to. t nanoseconds of device time move
//      paid_until by t × 100 / quota.
//   2. An idle container saves nothing: a charge counts from now, if paid_until
//      lies in the past. So at most VGPU_BURST_NS ahead of the clock is ever used
//      at once, plus what was launched before its cost was known.
//   3. One atomic operation per charge; no process waits for another.

#include "bucket.h"

#include <errno.h>
#include <time.h>

// A waiting launch looks again at least this often: corrections may shorten it.
#define LONGEST_SLEEP_NS UINT64_C(10000000)

uint64_t vgpu_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static struct vgpu_counters_device *counters(struct vgpu_process *process, int device) {
    return &process->region.counters->header.device[device];
}

uint64_t vgpu_bucket_wait(struct vgpu_process *process, int device) {
    struct vgpu_counters_device *bucket = counters(process, device);
    uint64_t now = vgpu_now(), began = now;
    for (uint64_t until; (until = vgpu_load(&bucket->paid_until)) > now + VGPU_BURST_NS;) {
        uint64_t ns = until - now - VGPU_BURST_NS;
        if (ns > LONGEST_SLEEP_NS)
            ns = LONGEST_SLEEP_NS;
        struct timespec sleep = {.tv_nsec = (long)ns};
        int saved = errno;
        clock_nanosleep(CLOCK_MONOTONIC, 0, &sleep, NULL);
        errno = saved;
        now = vgpu_now();
    }
    if (now != began)
        vgpu_add(&bucket->throttled_ns, now - began);
    return now;
}

static int64_t at_quota(struct vgpu_process *process, int device, int64_t ns) {
    return ns * 100 / (int64_t)vgpu_quota(process, device);
}

void vgpu_bucket_charge(struct vgpu_process *process, int device, uint64_t now, uint64_t ns) {
    struct vgpu_counters_device *bucket = counters(process, device);
    uint64_t cost = (uint64_t)at_quota(process, device, (int64_t)ns);
    uint64_t until = vgpu_load(&bucket->paid_until);
    while (!vgpu_cas(&bucket->paid_until, &until, (until > now ? until : now) + cost))
        ;
    vgpu_add(&bucket->busy_ns, ns);
    vgpu_add(&bucket->launches, 1);
}

void vgpu_bucket_correct(struct vgpu_process *process, int device, int64_t ns) {
    struct vgpu_counters_device *bucket = counters(process, device);
    vgpu_add(&bucket->paid_until, (uint64_t)at_quota(process, device, ns));
    vgpu_add(&bucket->busy_ns, (uint64_t)ns);
}
