// SPDX-License-Identifier: Apache-2.0
//
// What a container may launch just now.
//
// Invariant: a pace file that is missing or wrong, and words that are out of date or
// make no sense, leave the container its plain quota: never less, and more only
// where its limits allow that. A container without a quota is measured while the file
// says that neighbours with one are there. An idle slice has nothing without the file's word: its
// launches wait.

#include "compute/timeshare.h"

#define AHEAD_NS UINT64_C(4000000)
#define IDLE_AHEAD_NS UINT64_C(500000) // what the first launch of another may have to wait for
#define ASK_AGAIN_NS UINT64_C(500000)

struct vgpu_turn vgpu_turn(const struct vgpu_process *process, int device, uint64_t now) {
    uint32_t limit = vgpu_core(process, device);
    bool idle = process->limits.device[device].flags == VGPU_IDLE;
    struct vgpu_turn turn = {.core = limit % 100, .period = VGPU_PERIOD_NS, .part = VGPU_PERIOD_NS};
    if (idle)
        turn = (struct vgpu_turn){.core = 100, .period = VGPU_PERIOD_NS, .part = VGPU_PERIOD_NS - 1, .others = now + ASK_AGAIN_NS, .idle = true, .ahead = IDLE_AHEAD_NS};
    if (process->pace == NULL)
        return turn;
    const struct vgpu_pace_device *pace = &process->pace->device[device];
    bool yields = turn.core == 0 || idle;
    if (yields && !idle) {
        uint64_t plain = vgpu_load(&pace->plain_core);
        turn.core = plain < 100 ? (uint32_t)plain : 100;
    }
    if (turn.core == 0 || vgpu_load(&pace->valid_until) <= now)
        return turn;
    uint64_t word = vgpu_load(&pace->turn);
    uint64_t period = VGPU_TURN_PERIOD_NS(word), phase = VGPU_TURN_PHASE_NS(word);
    uint32_t core = VGPU_TURN_CORE(word), part = VGPU_TURN_PART(word);
    if (period < VGPU_PERIOD_MIN_NS || period > VGPU_PERIOD_MAX_NS || phase >= period || core > 100 ||
        part == 0 || (yields && core == 0))
        return turn;
    turn.neighbours = VGPU_TURN_NEIGHBOURS(word);
    turn.period = period;
    turn.phase = phase;
    turn.part = period * part / 255;
    turn.others = vgpu_load(&pace->others_until);
    if (yields)
        turn.core = core, turn.ahead = idle ? IDLE_AHEAD_NS : limit == 0 ? AHEAD_NS : 0;
    else if (core > turn.core && (process->limits.device[device].flags & VGPU_MAY_BURST) != 0)
        turn.core = core, turn.ahead = AHEAD_NS;
    return turn;
}
