// SPDX-License-Identifier: Apache-2.0
//
// Reads the pace file.
//
// Invariant: a file that is missing or wrong, and words that are out of date or
// make no sense, leave the container its plain quota: never less, and more only
// where its limits allow that. A container without a quota is measured while the file
// says that neighbours with one are there.

#include "pace.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

const struct vgpu_pace *vgpu_pace_map(const char *path, uint32_t devices) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    const struct vgpu_pace *pace = MAP_FAILED;
    if (lseek(fd, 0, SEEK_END) == (off_t)sizeof *pace)
        pace = mmap(NULL, sizeof *pace, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (pace == MAP_FAILED)
        return NULL;
    if (pace->magic == VGPU_PACE_MAGIC && pace->version == VGPU_PACE_VERSION &&
        pace->size == sizeof *pace && pace->device_count == devices)
        return pace;
    munmap((void *)(uintptr_t)pace, sizeof *pace);
    return NULL;
}

struct vgpu_turn vgpu_turn(const struct vgpu_process *process, int device, uint64_t now) {
    struct vgpu_turn turn = {.core = vgpu_quota(process, device), .period = VGPU_PERIOD_NS, .part = VGPU_PERIOD_NS};
    if (process->pace == NULL)
        return turn;
    const struct vgpu_pace_device *pace = &process->pace->device[device];
    bool yields = turn.core == 0;
    if (yields) {
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
        turn.core = core, turn.bursts = process->limits.device[device].core_percent == 0;
    else if (core > turn.core && (process->limits.device[device].flags & VGPU_MAY_BURST) != 0)
        turn.core = core, turn.bursts = true;
    return turn;
}
