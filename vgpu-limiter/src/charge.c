// SPDX-License-Identifier: Apache-2.0
//
// Charging memory: one word per device decides, one slot per process remembers.
//
// Invariants (T = bytes in device.memory, H = bytes in slot.held; what was shared
// by processes that have gone or freed it, and is used by others, counts as one
// more H: see share.c):
//   1. A charge is granted only by the compare-and-swap that keeps T within the
//      limit; a refused one changes nothing.
//   2. T is never less than the sum of H over live slots: T grows before H grows.
//      Where it shrinks before H shrinks, the memory is already free.
//   3. Every change is bracketed by slot.begun and the count of ended charges in
//      slot.held. A slot is at rest while both agree.
//   4. With every live slot at rest, T minus the sum of H is exactly what dead
//      processes left behind, also those killed between the two steps. The audit
//      takes it off if, and only if, nobody else has since (the corrections
//      counted in T).
//   5. No step waits for another process.

#include "charge.h"

#include "share.h"

#include <sched.h>
#include <time.h>

// A slot rests for most of the time even in a process that does nothing but
// allocate; a dead one is freed before the attempts.
#define AUDIT_ATTEMPTS 64

// Whether the slot is still the one that the process claimed. Somebody who
// overwrites the counters gains nothing: everything is refused from then on.
static bool slot_is_ours(const struct vgpu_process *process) {
    return vgpu_likely(vgpu_load(&process->region.slot->state) == process->region.slot_state);
}

static void raise_peak(uint64_t *peak, uint64_t bytes) {
    uint64_t seen = vgpu_load(peak);
    while (vgpu_unlikely(seen < bytes) && !vgpu_cas(peak, &seen, bytes))
        ;
}

static bool try_charge(struct vgpu_process *process, int device, uint64_t bytes) {
    struct vgpu_slot_device *own = &process->region.slot->device[device];
    uint64_t *total = &process->region.counters->header.device[device].memory;
    uint64_t limit = process->limits.device[device].memory_bytes;
    uint64_t granted = 0;
    vgpu_add(&own->begun, 1);
    VGPU_TEST_STEP();
    uint64_t seen = vgpu_load(total);
    while (bytes <= limit && (seen & VGPU_BYTES_MASK) <= limit - bytes) {
        if (vgpu_cas(total, &seen, seen + bytes)) {
            granted = bytes;
            raise_peak(&process->region.counters->header.device[device].memory_peak,
                       (seen & VGPU_BYTES_MASK) + bytes);
            break;
        }
    }
    VGPU_TEST_STEP();
    vgpu_add(&own->held, VGPU_HIGH_ONE + granted);
    return granted == bytes;
}

bool vgpu_try_charge(struct vgpu_process *process, int device, uint64_t bytes) {
    if (slot_is_ours(process)) {
        if (vgpu_likely(try_charge(process, device, bytes)))
            return true;
        vgpu_audit(process);
        if (try_charge(process, device, bytes))
            return true;
    } else {
        VGPU_LOG_ONCE("memory refused: the container's counters were overwritten");
    }
    return false;
}

bool vgpu_charge(struct vgpu_process *process, int device, uint64_t bytes) {
    if (vgpu_likely(vgpu_try_charge(process, device, bytes)))
        return true;
    vgpu_add(&process->region.counters->header.device[device].memory_refusals, 1);
    return false;
}

void vgpu_uncharge(struct vgpu_process *process, int device, uint64_t bytes) {
    struct vgpu_slot_device *own = &process->region.slot->device[device];
    if (bytes == 0 || !slot_is_ours(process))
        return;
    vgpu_add(&own->begun, 1);
    VGPU_TEST_STEP();
    vgpu_add(&process->region.counters->header.device[device].memory, -bytes);
    VGPU_TEST_STEP();
    vgpu_add(&own->held, VGPU_HIGH_ONE - bytes);
}

void vgpu_hand_over_begin(struct vgpu_process *process, int device) {
    if (slot_is_ours(process))
        vgpu_add(&process->region.slot->device[device].begun, 1);
}

void vgpu_hand_over_end(struct vgpu_process *process, int device, uint64_t bytes, bool stays) {
    if (!slot_is_ours(process))
        return;
    VGPU_TEST_STEP();
    if (!stays)
        vgpu_add(&process->region.counters->header.device[device].memory, -bytes);
    VGPU_TEST_STEP();
    vgpu_add(&process->region.slot->device[device].held, VGPU_HIGH_ONE - bytes);
}

// Reads one slot at rest: its charges begun and its bytes.
static bool read_at_rest(const struct vgpu_slot_device *slot, uint64_t *begun, uint64_t *bytes) {
    *begun = vgpu_load(&slot->begun);
    uint64_t held = vgpu_load(&slot->held);
    *bytes = held & VGPU_BYTES_MASK;
    return (*begun & 0xffff) == held >> 48;
}

// Takes the excess of one device's total off it. Returns false, with nothing
// done, if some slot was not at rest.
static bool correct(struct vgpu_counters *counters, int device) {
    uint64_t *total = &counters->header.device[device].memory;
    uint32_t slots = vgpu_region_slots(counters);
    uint64_t state[VGPU_SLOTS], begun[VGPU_SLOTS], sum = 0;
    for (uint32_t i = 0; i < slots; i++) {
        uint64_t bytes = 0;
        state[i] = vgpu_load(&counters->slot[i].state);
        if (vgpu_slot_is_live(state[i]) &&
            !read_at_rest(&counters->slot[i].device[device], &begun[i], &bytes))
            return false;
        sum += bytes;
        VGPU_TEST_STEP();
    }
    sum += vgpu_orphans(counters, device);
    uint64_t seen = vgpu_load(total);
    VGPU_TEST_STEP();
    for (uint32_t i = 0; i < slots; i++)
        if (vgpu_load(&counters->slot[i].state) != state[i] ||
            (vgpu_slot_is_live(state[i]) &&
             vgpu_load(&counters->slot[i].device[device].begun) != begun[i]))
            return false;
    if (vgpu_region_slots(counters) != slots)
        return false;
    uint64_t excess = (seen & VGPU_BYTES_MASK) - sum, corrections = seen >> 48;
    if (excess == 0 || excess > VGPU_BYTES_MASK)
        return true;
    VGPU_TEST_STEP();
    while (seen >> 48 == corrections && !vgpu_cas(total, &seen, seen + VGPU_HIGH_ONE - excess))
        ;
    return true;
}

void vgpu_audit(struct vgpu_process *process) {
    vgpu_region_reap(&process->region);
    for (uint32_t device = 0; device < process->limits.device_count; device++)
        for (int attempt = 0; attempt < AUDIT_ATTEMPTS; attempt++) {
            if (correct(process->region.counters, (int)device))
                break;
            sched_yield(); // somebody is between two steps, or died there just now
        }
}

void vgpu_audit_sometimes(struct vgpu_process *process) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    uint64_t tenths = (uint64_t)now.tv_sec * 10 + (uint64_t)now.tv_nsec / 100000000;
    uint64_t last = atomic_load_explicit(&process->last_audit, memory_order_relaxed);
    if (vgpu_unlikely(tenths != last) &&
        atomic_compare_exchange_strong(&process->last_audit, &last, tenths))
        vgpu_audit(process);
}
