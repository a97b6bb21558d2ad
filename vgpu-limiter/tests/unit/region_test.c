// SPDX-License-Identifier: Apache-2.0
//
// region_test COUNTERS: counters with anything wrong in their header or length are
// refused. Behind a right header a tenant can write what it wants: whatever is
// there, nothing is read beyond the file, no walk is longer than the slots, and
// every charge and audit comes back with an answer.

#include "charge.h"
#include "check.h"

#include <string.h>

#define ROUNDS 100

void vgpu_test_step(void) {}

static uint64_t random_state = 1;

static uint64_t random_word(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return random_state >> 11 ^ random_state << 40;
}

static void refused(const char *path, const void *bytes, size_t n, uint32_t devices) {
    struct vgpu_region region;
    put(path, bytes, n);
    CHECK(vgpu_region_join(path, devices, &region) != NULL);
    CHECK(vgpu_region_view(path, devices, &region) != NULL);
}

static void refuses_damage(const char *path, const struct vgpu_counters *good) {
    static unsigned char longer[sizeof *good + 1];
    memcpy(longer, good, sizeof *good);
    refused(path, longer, sizeof longer, 1);
    for (size_t n = 0; n < sizeof *good; n += n < 4096 ? 512 : 65536)
        refused(path, good, n, 1);
    refused(path, good, sizeof *good, 2);
    for (size_t bit = 0; bit < 8 * offsetof(struct vgpu_counters_header, slots_used); bit++) {
        struct vgpu_counters *bad = malloc(sizeof *bad);
        memcpy(bad, good, sizeof *bad);
        ((unsigned char *)bad)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        refused(path, bad, sizeof *bad, 1);
        free(bad);
    }
    put(path, good, sizeof *good);
    struct vgpu_region region;
    CHECK(vgpu_region_join("no such file", 1, &region) != NULL);
    CHECK(vgpu_region_join("/", 1, &region) != NULL);
}

// Some rounds keep our own slot, so that charges go all the way; some keep few
// slots, so that an audit can come to its end.
static void scribble(const struct vgpu_region *region, int round) {
    struct vgpu_counters *counters = region->counters;
    uint64_t *word = (uint64_t *)&counters->header.slots_used;
    uint64_t *end = (uint64_t *)(counters + 1);
    for (; word < end; word++)
        *word = random_word() % 4 != 0 ? random_word() : random_word() % 3;
    if (round % 3 != 0)
        counters->header.slots_used = (uint32_t)(random_word() % 8);
    if (round % 2 != 0)
        region->slot->state = region->slot_state;
}

int main(int argc, char **argv) {
    static struct vgpu_counters good;
    static struct vgpu_process process;
    CHECK(argc >= 2);
    get(argv[1], &good, sizeof good);
    refuses_damage(argv[1], &good);

    CHECK(vgpu_region_join(argv[1], 1, &process.region) == NULL);
    process.limits.device_count = 1;
    process.limits.device[0].memory_bytes = UINT64_C(1) << 30;
    int granted = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct vgpu_counters *counters = process.region.counters;
        scribble(&process.region, round);
        CHECK(vgpu_region_slots(counters) <= VGPU_SLOTS);
        uint64_t bytes = random_word() % (UINT64_C(1) << 31);
        bool fits = vgpu_charge(&process, 0, bytes);
        CHECK(!fits || bytes <= process.limits.device[0].memory_bytes);
        granted += fits;
        vgpu_uncharge(&process, 0, bytes);
        vgpu_audit(&process);
        for (uint32_t i = 0; i < VGPU_SLOTS; i += 17)
            vgpu_region_lives(&process.region, i);
    }
    CHECK(granted > 0);
    return 0;
}
