// SPDX-License-Identifier: Apache-2.0
//
// The slowdown, from samples that are made up.

#include "check.h"
#include "compute/slowdown.h"

#define MS UINT64_C(1000000)

void vgpu_test_step(void) {}

static struct vgpu_costs costs;
static struct vgpu_slowdown slowdown;
static uint64_t now = 1000000 * MS, step = 1000 * MS, word;

// So many launches of a class, a step apart; the device works for a fifth of the time.
static void launch(uint64_t key, unsigned times, uint64_t ns) {
    for (unsigned i = 0; i < times; i++) {
        vgpu_cost_learn(&costs, key, ns, VGPU_APART);
        vgpu_slowdown_worked(&slowdown, step / 5);
        vgpu_slowdown_sample(&slowdown, &costs, key, ns, now += step, &word);
    }
}

static uint64_t percent(void) { return word & 0xffff; }
static bool near(uint64_t value, uint64_t want) { return value + 2 >= want && value <= want + 2; }

int main(void) {
    uint64_t key = vgpu_cost_key(&costs, 1, 0, 0);
    launch(key, 99, 5 * MS);
    CHECK(word == 0); // too few
    launch(key, 1, 5 * MS);
    CHECK(percent() == 100 && near(word >> 16 & 0xffff, 200) && word >> 32 == now / (1000 * MS));

    // Samples that come too soon are none.
    for (unsigned i = 0; i < 1000; i++)
        vgpu_slowdown_sample(&slowdown, &costs, key, 50 * MS, now + 19 * MS, &word);
    CHECK(slowdown.samples == 100);

    launch(key, 60, 7 * MS);
    CHECK(percent() == 100); // not half of the newest yet
    launch(key, 68, 7 * MS);
    CHECK(near(percent(), 140));
    launch(key, 1000, 7 * MS);
    CHECK(near(percent(), 140)); // the best ones are 8 percent
    launch(key, 128, 3 * MS);
    CHECK(percent() == 100); // better than ever
    launch(key, 128, 0);
    launch(key, 128, UINT64_MAX / 2);
    CHECK(percent() == VGPU_SLOWDOWN_MOST);

    // Another class takes its place once it took twice the time, or where this one has ended.
    uint64_t first = vgpu_cost_key(&costs, 2, 0, 0), other = vgpu_cost_key(&costs, 3, 0, 0);
    now += 10000 * MS;
    launch(first, 100, 5 * MS);
    step = 25 * MS;
    CHECK(slowdown.key == first && slowdown.samples == 100 && percent() == 100);
    launch(other, 199, 5 * MS);
    CHECK(slowdown.key == first && percent() == 100);
    launch(other, 2, 5 * MS);
    CHECK(slowdown.key == other && slowdown.samples <= 2 && word == 0);
    now += 10000 * MS;
    launch(first, 1, 5 * MS);
    CHECK(slowdown.key == first && slowdown.samples == 1);
    return 0;
}
