// SPDX-License-Identifier: Apache-2.0
//
// timeshare_test COUNTERS LIMITS PACE: a pace file with anything wrong is none. Whatever
// a right one says, the container has no less than its quota, more only where its
// limits allow that, and its refill periods have a sound length.

#include "check.h"
#include "compute/timeshare.h"
#include "runtime/limits.h"

#include <sys/mman.h>

void vgpu_test_step(void) {}

static void refuses_damage(const char *path, const struct vgpu_pace *good) {
    struct {
        struct vgpu_pace pace;
        char more;
    } longer = {.pace = *good};
    put(path, &longer, sizeof *good + 1);
    CHECK(vgpu_pace_map(path, 1) == NULL);
    for (size_t n = 0; n < sizeof *good; n++) {
        put(path, good, n);
        CHECK(vgpu_pace_map(path, 1) == NULL);
    }
    for (size_t bit = 0; bit < 8 * offsetof(struct vgpu_pace, resizes); bit++) {
        struct vgpu_pace bad = *good;
        ((unsigned char *)&bad)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        put(path, &bad, sizeof bad);
        CHECK(vgpu_pace_map(path, 1) == NULL);
    }
    put(path, good, sizeof *good);
    CHECK(vgpu_pace_map(path, 2) == NULL);
    CHECK(vgpu_pace_map("no such file", 1) == NULL);
    CHECK(vgpu_pace_map("/", 1) == NULL);
}

int main(int argc, char **argv) {
    static struct vgpu_process process;
    struct vgpu_pace good;
    CHECK(argc == 4);
    get(argv[3], &good, sizeof good);
    refuses_damage(argv[3], &good);

    CHECK(vgpu_region_join(argv[1], 1, &process.region) == NULL);
    process.pace = vgpu_pace_map(argv[3], 1);
    CHECK(process.pace != NULL);
    process.limits.device_count = 1;
    struct vgpu_pace written = good;
    uint64_t random = 1;
    int more = 0, neighbours = 0, late = 0;
    for (int i = 0; i < 20000; i++) {
        uint64_t now = UINT64_C(1) << 40;
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        uint64_t sound = (random >> 40 & 0xff) | (random & 0x7fff) << 8 | (random >> 20 & 0xfffff) << 28 |
                         (random >> 32 | 1) << 48;
        written.device[0].turn = i % 2 != 0 ? random : sound; // most of the latter are
        written.device[0].valid_until = now + (i % 3 != 0);
        process.limits.device[0].core_percent = 1 + (uint32_t)(random >> 57) % 99;
        process.limits.device[0].flags = i % 5 < 3 ? VGPU_MAY_BURST : 0;
        uint32_t quota = process.limits.device[0].core_percent;
        bool second = i % 7 < 3; // the limit in force: the file's, or another, or one that makes no sense
        process.region.counters->header.device[0].memory = second ? VGPU_SECOND_LIMIT : 0;
        written.device[0].limit[!second] = random;
        written.device[0].limit[second] = i % 4 == 0 ? 0 : i % 4 == 1 ? UINT64_C(101) << 48 : (random >> 17 & 0x7f) << 48;
        if (i % 4 > 1 && (random >> 17 & 0x7f) != 0 && (random >> 17 & 0x7f) < 100)
            quota = (uint32_t)(random >> 17 & 0x7f);
        if ((written.device[0].limit[second] >> 48) == 100)
            continue; // no quota
        put(argv[3], &written, sizeof written);
        struct vgpu_turn turn = vgpu_turn(&process, 0, now);
        CHECK(turn.core >= quota && turn.core <= 100);
        CHECK(turn.core == quota || process.limits.device[0].flags != 0);
        CHECK(turn.period >= VGPU_PERIOD_MIN_NS && turn.period <= VGPU_PERIOD_MAX_NS);
        CHECK(turn.phase < turn.period && turn.part > 0 && turn.part <= turn.period);
        more += turn.core > quota;
        neighbours += turn.neighbours;
        if (i % 3 == 0) {
            CHECK(turn.core == quota && !turn.neighbours && turn.period == VGPU_PERIOD_NS && turn.part == turn.period);
            late++;
        }
    }
    CHECK(more > 0 && neighbours > 0 && late > 0);
    return 0;
}
