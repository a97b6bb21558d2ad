// SPDX-License-Identifier: Apache-2.0
//
// The slowdown: the median of what launches of one class took lately, over the 5th
// percentile of all of them since the class is followed.
//
// Invariants:
//   1. The class is the one whose launches took most device time where they were measured.
//      Another one takes its place, and begins without samples, only once it took twice as
//      much, or where no launch of the class has come for long.
//   2. Samples are apart by SPACING_NS at least: what is "lately" is seconds, however short
//      the launches, and the percentile is of time, not of launches.
//   3. Nothing is forgotten: launches that have been slow for hours are still compared with
//      the best ones, as long as those were a 20th of all.

#include "compute/slowdown.h"

#include <string.h>

#define SPACING_NS UINT64_C(20000000)
#define LONGEST_GAP_NS UINT64_C(10000000000)
#define LATELY_NS UINT64_C(10000000000) // over which the device time is taken, about
#define FIRST_OCTAVE 10
#define PART_BITS 6
#define BINS (VGPU_SLOWDOWN_OCTAVES * VGPU_SLOWDOWN_PARTS)
_Static_assert(VGPU_SLOWDOWN_PARTS == 1 << PART_BITS && BINS <= UINT16_MAX, "bins");

static unsigned bin_of(uint64_t ns) {
    unsigned octave = ns != 0 ? 63 - (unsigned)__builtin_clzll(ns) : 0;
    if (octave < FIRST_OCTAVE)
        return 0;
    if (octave >= FIRST_OCTAVE + VGPU_SLOWDOWN_OCTAVES)
        return BINS - 1;
    return (octave - FIRST_OCTAVE) * VGPU_SLOWDOWN_PARTS + (unsigned)(ns >> (octave - PART_BITS)) % VGPU_SLOWDOWN_PARTS;
}

// The middle of a bin.
static uint64_t ns_of(unsigned bin) {
    unsigned octave = FIRST_OCTAVE + bin / VGPU_SLOWDOWN_PARTS;
    return (UINT64_C(1) << octave) + ((2 * (uint64_t)(bin % VGPU_SLOWDOWN_PARTS) + 1) << (octave - PART_BITS - 1));
}

static unsigned best(const struct vgpu_slowdown *slowdown) {
    uint64_t below = 0;
    unsigned bin = 0;
    while (bin < BINS - 1 && (below += slowdown->count[bin]) * 20 < slowdown->samples)
        bin++;
    return bin;
}

// The bin in which half of the newest samples is reached: the half of the range in which it
// lies, again and again, without an order or a copy of them.
static unsigned median(const struct vgpu_slowdown *slowdown) {
    unsigned n = slowdown->samples < VGPU_SLOWDOWN_LATELY ? (unsigned)slowdown->samples : VGPU_SLOWDOWN_LATELY;
    unsigned low = 0, high = BINS - 1;
    while (low < high) {
        unsigned middle = (low + high) / 2, below = 0;
        for (unsigned i = 0; i < n; i++)
            below += slowdown->lately[i] <= middle;
        if (below * 2 >= n)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

// The device time that launches of the class have taken, as far as they were measured.
static uint64_t weight(const struct vgpu_costs *costs, uint64_t key) {
    struct vgpu_price price;
    return vgpu_cost_get(costs, key, &price) ? price.ns * price.times : 0;
}

// The part of the time in which the device worked for the context, in 1/1000: at least 1.
static uint64_t part_of(struct vgpu_slowdown *slowdown, uint64_t now) {
    uint64_t passed = now - slowdown->since;
    uint64_t part = passed != 0 ? slowdown->busy_ns * 1000 / passed : 1;
    if (passed > LATELY_NS) {
        slowdown->since = now - passed / 2;
        slowdown->busy_ns /= 2;
    }
    return part < 1 ? 1 : part < 1000 ? part : 1000;
}

void vgpu_slowdown_sample(struct vgpu_slowdown *slowdown, const struct vgpu_costs *costs, uint64_t key, uint64_t ns,
                          uint64_t now, uint64_t *word) {
    if (now < slowdown->sampled + SPACING_NS)
        return;
    if (key != slowdown->key) {
        if (now < slowdown->sampled + LONGEST_GAP_NS && weight(costs, key) / 2 < weight(costs, slowdown->key))
            return;
        memset(slowdown, 0, sizeof *slowdown); // not assigned: small stacks have no room for another one
        slowdown->key = key;
        slowdown->since = now;
        vgpu_store(word, 0);
    }
    unsigned bin = bin_of(ns);
    slowdown->sampled = now;
    slowdown->lately[slowdown->samples++ % VGPU_SLOWDOWN_LATELY] = (uint16_t)bin;
    slowdown->count[bin]++;
    uint64_t seconds = now / UINT64_C(1000000000);
    if (slowdown->samples < VGPU_SLOWDOWN_LEAST || seconds == slowdown->written)
        return;
    slowdown->written = seconds; // some 4 us, which no launch is to pay for more often
    uint64_t least = ns_of(best(slowdown)), percent = (ns_of(median(slowdown)) * 100 + least / 2) / least;
    if (percent < 100)
        percent = 100;
    if (percent > VGPU_SLOWDOWN_MOST)
        percent = VGPU_SLOWDOWN_MOST;
    vgpu_store(word, seconds << 32 | part_of(slowdown, now) << 16 | percent);
}
