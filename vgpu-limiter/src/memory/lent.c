// SPDX-License-Identifier: Apache-2.0
//
// Lent memory: a limit is a promise of which only a part, `ready`, is free on the device.
//
// Invariants:
//   1. Whatever the node side does, a charge within the limit succeeds: after a wait it asks
//      the driver.
//   2. After a wait in vain there is none until the total counts a change: an agent that is
//      away costs a process one wait.
//   3. `wanted` is what a waiting charge needs. Each writes its own again and again, so one that
//      ends may clear the word.

#include "memory/lent.h"

#define LOOK_NS UINT64_C(1000000)

// Never 0.
static uint32_t changes_of(uint64_t total) { return (uint32_t)(total >> 48) | 1u << 16; }

bool vgpu_charge_lent(struct vgpu_process *process, int device, uint64_t bytes) {
    uint64_t *wanted = &process->region.counters->header.device[device].wanted;
    uint64_t began = 0, now = 0;
    bool fits = false;
    int cancel = vgpu_cancel_hold(); // a sleep would end the thread
    while (!fits && !vgpu_is_damaged(process)) {
        uint64_t total = vgpu_total(process, device), charged = total & VGPU_BYTES_MASK;
        uint64_t limit = vgpu_memory_limit(&process->limits, process->pace, device, total);
        if (vgpu_memory_ready(&process->limits, process->pace, device, total) == limit || bytes > limit ||
            charged > limit - bytes || atomic_load(&process->waited_in_vain[device]) == changes_of(total))
            break;
        if (began == 0) {
            began = now = vgpu_now();
        } else if (now - began >= VGPU_LENT_NS) {
            atomic_store(&process->waited_in_vain[device], changes_of(total));
            break;
        }
        vgpu_raise_to(wanted, charged + bytes);
        now = vgpu_pause(now, LOOK_NS);
        fits = vgpu_charge_once(process, device, bytes);
    }
    if (began != 0)
        vgpu_store(wanted, 0);
    vgpu_cancel_free(cancel);
    return fits || vgpu_charge_promised(process, device, bytes);
}
