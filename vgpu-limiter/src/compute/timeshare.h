// SPDX-License-Identifier: Apache-2.0
//
// What the node side says about each device just now.

#ifndef VGPU_TIMESHARE_H
#define VGPU_TIMESHARE_H

#include "runtime/process.h"

#define VGPU_PERIOD_NS UINT64_C(10000000) // refill period where nobody says otherwise

struct vgpu_turn {
    uint32_t core;          // percent of the device at which launches are paid for; 0: they aren't measured
    bool neighbours;        // other containers work on the device too
    bool idle;              // an idle slice's
    uint64_t ahead;         // where that is more than the quota, or there is none: launches are at most so far ahead, ns; else 0
    uint64_t period, phase; // refills come at phase + n × period on CLOCK_MONOTONIC, ns
    uint64_t others;        // the next launch is no sooner: when others' work is through and the turn begins
    uint64_t part;          // of each period is for launching; the whole of it: any time
};

// What holds for a device now. Never less than the quota.
struct vgpu_turn vgpu_turn(const struct vgpu_process *process, int device, uint64_t now);

#endif
