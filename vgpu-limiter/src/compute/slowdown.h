// SPDX-License-Identifier: Apache-2.0
//
// How much longer than at their best launches take on the device just now.

#ifndef VGPU_SLOWDOWN_H
#define VGPU_SLOWDOWN_H

#include "compute/cost.h"
#include "vgpu_layout.h"

#define VGPU_SLOWDOWN_LATELY 128 // samples that are now
#define VGPU_SLOWDOWN_LEAST 100  // samples, or nothing is known
#define VGPU_SLOWDOWN_OCTAVES 26 // from 1 us to 68 s
#define VGPU_SLOWDOWN_PARTS 64   // bins of an octave: none is wider than 1.6 percent

// The class of a context's launches that is followed.
struct vgpu_slowdown {
    uint64_t key;            // 0 for none
    uint64_t sampled;        // clock of the newest sample
    uint64_t since, busy_ns; // device time of all classes, since then
    uint64_t samples;
    uint64_t written;        // clock in seconds: once in each it is written
    uint16_t lately[VGPU_SLOWDOWN_LATELY]; // bins of the newest, in a ring
    uint32_t count[VGPU_SLOWDOWN_OCTAVES * VGPU_SLOWDOWN_PARTS]; // of all samples, by bin
};

// Counts device time that was measured.
static inline void vgpu_slowdown_worked(struct vgpu_slowdown *slowdown, uint64_t ns) { slowdown->busy_ns += ns; }

// Takes a launch of this class that took ns as a sample, if it is time for one and the class
// is the one that is followed, and writes the slowdown to the word once a second.
void vgpu_slowdown_sample(struct vgpu_slowdown *slowdown, const struct vgpu_costs *costs, uint64_t key, uint64_t ns,
                          uint64_t now, uint64_t *word);

#endif
