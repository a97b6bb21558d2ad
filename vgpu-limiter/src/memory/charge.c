// SPDX-License-Identifier: Apache-2.0
//
// Charging memory: one word per device decides, one slot per process remembers.
//
// Invariants (T = bytes in device.memory, H = bytes held by a slot, by its two pairs
// of begun and held together; what was shared by processes that have gone or freed
// it, and is used by others or kept by a descriptor, counts as one more H: see
// ipc_share.c):
//   1. A charge is granted only by the compare-and-swap that keeps T within the
//      limit; a refused one changes nothing.
//   2. T is never less than the sum of H over live slots: T grows before H grows.
//      Where it shrinks before H shrinks, the memory is already free.
//   3. Every change is bracketed by begun and the count of ended charges in held, of
//      one pair. A pair is at rest while both agree, a slot while both its pairs are.
//   4. With every live slot at rest, T minus the sum of H is exactly what dead
//      processes left behind, also those killed between the two steps. The audit
//      takes it off if, and only if, nobody else has since (the corrections
//      counted in T).
//   5. No step waits for another process.
//   6. The pairs in slot.lone are changed by one thread of the process alone, its
//      owner, by plain stores; the others share slot.device, by atomic additions.
//      The owner is the first thread to have made OWNER_CHARGES charges, and stays
//      that until its process ends: a child of fork begins with none, and a thread
//      that finds itself to be the owner is it, or has been given the memory of one
//      that has ended, by whose address it is known.

#include "memory/charge.h"

// More than a thread makes that only sets things up.
#define OWNER_CHARGES 16

static void raise_peak(uint64_t *peak, uint64_t bytes) {
    uint64_t seen = vgpu_load(peak);
    while (vgpu_unlikely(seen < bytes) && !vgpu_cas(peak, &seen, bytes))
        ;
}

// The pair of the slot in which the calling thread counts.
struct pair {
    struct vgpu_slot_device *words;
    bool alone; // no other thread does
};

// By its address a thread knows itself to be the owner.
static _Thread_local unsigned charges __attribute__((tls_model("initial-exec")));

static struct pair pair_of(const struct vgpu_process *process, int device) {
    struct vgpu_slot *slot = process->region.slot;
    bool alone = vgpu_likely(atomic_load_explicit(&process->owner_thread, memory_order_relaxed) == &charges);
    return (struct pair){alone ? &slot->lone[device] : &slot->device[device], alone};
}

// Not between begin and end, which are to be of one pair.
static void claim_owner_thread(struct vgpu_process *process) {
    const unsigned *none = NULL;
    if (vgpu_unlikely(atomic_load_explicit(&process->owner_thread, memory_order_relaxed) == NULL) &&
        ++charges >= OWNER_CHARGES)
        atomic_compare_exchange_strong(&process->owner_thread, &none, &charges);
}

static void count(uint64_t *word, uint64_t delta, bool alone) {
    if (vgpu_likely(alone)) {
        uint64_t before = __atomic_load_n(word, __ATOMIC_RELAXED);
        VGPU_TEST_STEP();
        vgpu_store(word, before + delta);
    } else {
        vgpu_add(word, delta);
    }
}

static void begin(struct pair pair) { count(&pair.words->begun, 1, pair.alone); }

static void end(struct pair pair, uint64_t bytes) { count(&pair.words->held, 1 + (bytes << 16), pair.alone); }

bool vgpu_charge_once(struct vgpu_process *process, int device, uint64_t bytes) {
    if (!vgpu_slot_is_ours(process))
        return false;
    claim_owner_thread(process);
    struct pair pair = pair_of(process, device);
    uint64_t *total = &process->region.counters->header.device[device].memory;
    uint64_t limit = process->limits.device[device].memory_bytes;
    uint64_t granted = 0;
    begin(pair);
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
    end(pair, granted);
    return granted == bytes;
}

void vgpu_uncharge(struct vgpu_process *process, int device, uint64_t bytes) {
    if (bytes == 0 || !vgpu_slot_is_ours(process))
        return;
    struct pair pair = pair_of(process, device);
    begin(pair);
    VGPU_TEST_STEP();
    vgpu_add(&process->region.counters->header.device[device].memory, -bytes);
    VGPU_TEST_STEP();
    end(pair, -bytes);
}

void vgpu_hand_over_begin(struct vgpu_process *process, int device) {
    if (vgpu_slot_is_ours(process))
        begin(pair_of(process, device));
}

void vgpu_hand_over_end(struct vgpu_process *process, int device, uint64_t bytes, bool stays) {
    if (!vgpu_slot_is_ours(process))
        return;
    VGPU_TEST_STEP();
    if (!stays)
        vgpu_add(&process->region.counters->header.device[device].memory, -bytes);
    VGPU_TEST_STEP();
    end(pair_of(process, device), -bytes);
}

bool vgpu_read_held(const struct vgpu_slot *slot, int device, uint64_t *begun, uint64_t *bytes) {
    const struct vgpu_slot_device *pairs[] = {&slot->device[device], &slot->lone[device]};
    uint64_t sum = 0, under_way = 0;
    *begun = 0;
    for (int i = 0; i < 2; i++) {
        uint64_t count = vgpu_load(&pairs[i]->begun), held = vgpu_load(&pairs[i]->held) - count;
        under_way |= held & 0xffff;
        sum += (held + (1 << 15)) >> 16; // less than 2^15 are under way
        *begun += count;
    }
    *bytes = sum & VGPU_BYTES_MASK;
    return under_way == 0;
}

// Neither count ever falls, so their sum is the same only while both are.
uint64_t vgpu_begun(const struct vgpu_slot *slot, int device) {
    return vgpu_load(&slot->device[device].begun) + vgpu_load(&slot->lone[device].begun);
}
