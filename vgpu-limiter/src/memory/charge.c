// SPDX-License-Identifier: Apache-2.0
//
// Charging memory: one word per device decides, one slot per process remembers.
//
// Invariants (T = bytes in device.memory, H = bytes held by a slot; what was shared by
// processes that have gone or freed it, and is used by others or kept by a descriptor,
// counts as one more H: see ipc_share.c):
//   1. A charge is granted only by the compare-and-swap that keeps T within the
//      limit; a refused one changes nothing.
//   2. T is never less than the sum of H over live slots: T grows before H grows.
//      Where it shrinks before H shrinks, the memory is already free.
//   3. Every change is bracketed by begun and the count of ended charges in held. A slot
//      is at rest while both agree.
//   4. With every live slot at rest, T minus the sum of H is exactly what dead
//      processes left behind, also those killed between the two steps. The audit
//      takes it off if, and only if, nobody else has since (the corrections
//      counted in T).
//   5. No step waits for another process.
//   6. T is never more than the limit in force. The node side changes limits by a
//      compare-and-swap of T's word, which counts it and names the other of two limits; the
//      one that is in force doesn't change. A charge loads the limit after T: where that is
//      out of date, so is T, and its own compare-and-swap fails.
//   7. The same holds for what is ready of it, but for charges that have waited for lent
//      memory in vain, or are of memory that the driver has given already.

#include "memory/charge.h"

void vgpu_raise_to(uint64_t *most, uint64_t bytes) {
    uint64_t seen = vgpu_load(most);
    while (vgpu_unlikely(seen < bytes) && !vgpu_cas(most, &seen, bytes))
        ;
}

static struct vgpu_slot_device *words_of(const struct vgpu_process *process, int device) {
    return &process->region.slot->device[device];
}

// False if the slot went back: an earlier copy of the counters was written back.
static bool begin(struct vgpu_process *process, int device) {
    if (vgpu_grow(&words_of(process, device)->begun, &process->seen.begun[device], 1))
        return true;
    if (!vgpu_is_damaged(process)) // nor has another process taken the slot
        vgpu_damage(process);
    return false;
}

static void end(struct vgpu_slot_device *words, uint64_t bytes) { vgpu_add(&words->held, 1 + (bytes << 16)); }

static inline __attribute__((always_inline)) bool charge(struct vgpu_process *process, int device, uint64_t bytes,
                                                         bool also_lent) {
    if (vgpu_is_damaged(process) || !begin(process, device))
        return false;
    struct vgpu_slot_device *words = words_of(process, device);
    uint64_t *total = &process->region.counters->header.device[device].memory;
    uint64_t granted = 0;
    VGPU_TEST_STEP();
    uint64_t seen = vgpu_load(total);
    for (;;) {
        VGPU_TEST_STEP();
        uint64_t limit = (also_lent ? vgpu_memory_limit : vgpu_memory_ready)(&process->limits, process->pace, device, seen);
        VGPU_TEST_STEP();
        if (bytes > limit || (seen & VGPU_BYTES_MASK) > limit - bytes)
            break;
        if (vgpu_cas(total, &seen, seen + bytes)) {
            granted = bytes;
            vgpu_raise_to(&process->region.counters->header.device[device].memory_peak,
                          (seen & VGPU_BYTES_MASK) + bytes);
            break;
        }
    }
    VGPU_TEST_STEP();
    end(words, granted);
    return granted == bytes;
}

bool vgpu_charge_once(struct vgpu_process *process, int device, uint64_t bytes) {
    return charge(process, device, bytes, false);
}

bool vgpu_charge_promised(struct vgpu_process *process, int device, uint64_t bytes) {
    return charge(process, device, bytes, true);
}

void vgpu_count_refusal(struct vgpu_process *process, int device, uint64_t bytes) {
    struct vgpu_counters_device *of = &process->region.counters->header.device[device];
    vgpu_add(&of->memory_refusals, 1);
    if (vgpu_is_damaged(process)) // it was not for want of memory
        return;
    uint64_t charged = vgpu_load(&of->memory) & VGPU_BYTES_MASK;
    vgpu_raise_to(&of->needed, bytes > VGPU_BYTES_MASK - charged ? VGPU_BYTES_MASK : charged + bytes);
}

void vgpu_uncharge(struct vgpu_process *process, int device, uint64_t bytes) {
    if (bytes == 0 || vgpu_is_damaged(process) || !begin(process, device))
        return;
    struct vgpu_slot_device *words = words_of(process, device);
    VGPU_TEST_STEP();
    vgpu_add(&process->region.counters->header.device[device].memory, -bytes);
    VGPU_TEST_STEP();
    end(words, -bytes);
}

void vgpu_hand_over_begin(struct vgpu_process *process, int device) {
    if (!vgpu_is_damaged(process))
        begin(process, device);
}

void vgpu_hand_over_end(struct vgpu_process *process, int device, uint64_t bytes, bool stays) {
    if (vgpu_is_damaged(process))
        return;
    VGPU_TEST_STEP();
    if (!stays)
        vgpu_add(&process->region.counters->header.device[device].memory, -bytes);
    VGPU_TEST_STEP();
    end(words_of(process, device), -bytes);
}

bool vgpu_read_held(const struct vgpu_slot *slot, int device, uint64_t *begun, uint64_t *bytes) {
    *begun = vgpu_begun(slot, device);
    uint64_t held = vgpu_load(&slot->device[device].held) - *begun;
    *bytes = (held + (1 << 15)) >> 16; // less than 2^15 are under way
    return (held & 0xffff) == 0;
}
