// SPDX-License-Identifier: Apache-2.0
//
// The audit: with every live slot at rest, a device's total less what the slots hold and
// what importers and descriptors alone keep is what dead processes left behind.
//
// Why it is exact (charge.c, invariant 4): it reads begun and held of each slot, then T,
// then each begun again. All changes of T are read-modify-writes, and each addition to
// begun, to T and to held is a release in the order of 3, each load an acquire.
//   - A begun and a held that agree were stored before and after the same changes of
//     T, none of which the load of T can miss: held came after them.
//   - A later change of T that the load does see brings with it the addition to begun
//     before it, or one after that, so the second look at begun finds it changed.

#include "memory/audit.h"

#include "memory/ipc_share.h"
#include "memory/lent.h"

#include <sched.h>
#include <time.h>

// A slot rests for most of the time even in a process that does nothing but
// allocate; a dead one is freed before the attempts.
#define AUDIT_ATTEMPTS 64

// Under audit.lock. Takes the excess of one device's total off it. Returns false, with
// nothing done, if some slot was not at rest, or the total was corrected or its limit changed.
static bool correct(struct vgpu_process *process, int device) {
    struct vgpu_counters *counters = process->region.counters;
    uint64_t *total = &counters->header.device[device].memory;
    uint32_t slots = vgpu_region_slots(counters);
    if (process->region.slot >= counters->slot + slots) { // our own was among them
        vgpu_damage(process);
        return true;
    }
    uint64_t *state = process->audit.seen_state, *begun = process->audit.seen_begun, sum = 0;
    for (uint32_t i = 0; i < slots; i++) {
        uint64_t bytes = 0;
        state[i] = vgpu_load(&counters->slot[i].state);
        if (vgpu_slot_is_live(state[i]) && !vgpu_read_held(&counters->slot[i], device, &begun[i], &bytes))
            return false;
        sum += bytes;
        VGPU_TEST_STEP();
    }
    sum += vgpu_unowned_bytes(counters, device, true);
    uint64_t seen = vgpu_load(total);
    VGPU_TEST_STEP();
    for (uint32_t i = 0; i < slots; i++)
        if (vgpu_load(&counters->slot[i].state) != state[i] ||
            (vgpu_slot_is_live(state[i]) && vgpu_begun(&counters->slot[i], device) != begun[i]))
            return false;
    if (vgpu_region_slots(counters) != slots)
        return false;
    uint64_t excess = (seen & VGPU_BYTES_MASK) - sum, changes = seen >> 48;
    if (excess == 0 || excess > VGPU_BYTES_MASK)
        return true;
    VGPU_TEST_STEP();
    while (seen >> 48 == changes) {
        uint64_t counted = (seen + VGPU_HIGH_ONE) & ~VGPU_SECOND_LIMIT;
        if (vgpu_cas(total, &seen, (counted | (seen & VGPU_SECOND_LIMIT)) - excess))
            return true;
    }
    return false; // another process has corrected it, or the limits have changed
}

// Also under pools.lock, and with the locks of dead processes' slots in hand.
void vgpu_audit(struct vgpu_process *process, bool all) {
    int cancel = vgpu_cancel_hold();
    vgpu_region_reap(&process->region, all);
    vgpu_share_look(process);
    vgpu_lock(&process->audit.lock);
    for (uint32_t device = 0; device < process->limits.device_count; device++)
        for (int attempt = 0; attempt < AUDIT_ATTEMPTS; attempt++) {
            if (correct(process, (int)device))
                break;
            sched_yield(); // somebody is between two steps, or died there just now
        }
    vgpu_unlock(&process->audit.lock);
    vgpu_cancel_free(cancel);
}

bool vgpu_audit_sometimes(struct vgpu_process *process) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    uint64_t tenths = (uint64_t)now.tv_sec * 10 + (uint64_t)now.tv_nsec / 100000000;
    uint64_t last = atomic_load_explicit(&process->audit.last, memory_order_relaxed);
    if (vgpu_unlikely(tenths != last) &&
        atomic_compare_exchange_strong(&process->audit.last, &last, tenths)) {
        vgpu_audit(process, true);
        return true;
    }
    return false;
}

bool vgpu_charge_audited(struct vgpu_process *process, int device, uint64_t bytes) {
    if (vgpu_is_damaged(process)) {
        VGPU_LOG_ONCE("memory refused: the container's counters were overwritten");
        return false;
    }
    vgpu_audit(process, true);
    return vgpu_charge_once(process, device, bytes);
}

bool vgpu_charge(struct vgpu_process *process, int device, uint64_t bytes) {
    if (vgpu_try_charge(process, device, bytes) || vgpu_charge_lent(process, device, bytes))
        return true;
    vgpu_count_refusal(process, device, bytes);
    return false;
}

bool vgpu_charge_taken(struct vgpu_process *process, int device, uint64_t bytes) {
    if (vgpu_try_charge(process, device, bytes) || vgpu_charge_promised(process, device, bytes))
        return true;
    vgpu_count_refusal(process, device, bytes);
    return false;
}
