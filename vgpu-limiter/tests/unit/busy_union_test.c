// SPDX-License-Identifier: Apache-2.0
//
// The calendar of the container's device time, alone and entered by threads.

#include "check.h"
#include "compute/busy_union.h"

#include <pthread.h>

#define MS UINT64_C(1000000)
#define AT (UINT64_C(1) << 50)

void vgpu_test_step(void) {}

static struct vgpu_calendar calendar;

// As soon as it is through.
static uint64_t enter(uint64_t start, uint64_t end) { return vgpu_busy_union_enter(&calendar, end, start, end); }

static void *enter_all(void *sum) {
    for (uint64_t i = 0; i < 1000; i++)
        *(uint64_t *)sum += enter(AT + 400 * MS + i * 100000, AT + 400 * MS + (i + 1) * 100000);
    return NULL;
}

// What is entered twice counts once; what lies apart counts in full; threads that
// enter the same time share it.
int main(void) {
    pthread_t thread[4];
    uint64_t sums[4] = {0}, sum = 0;
    CHECK(enter(AT, AT + 10 * MS) == 10 * MS);
    CHECK(enter(AT, AT + 10 * MS) <= 2 * VGPU_CELL_NS);
    uint64_t half = enter(AT + 5 * MS, AT + 15 * MS);
    CHECK(half + 2 * VGPU_CELL_NS >= 5 * MS && half <= 5 * MS + 2 * VGPU_CELL_NS);
    CHECK(enter(AT + 20 * MS, AT + 20 * MS + 10) == 10);

    // Four streams that work at the same time for little longer than an interval: that counts
    // little more than once.
    uint64_t brief = 0;
    for (uint64_t i = 0; i < 400; i++)
        brief += enter(AT + 200 * MS + i / 4 * 101234, AT + 200 * MS + i / 4 * 101234 + 40000);
    CHECK(brief >= 100 * 40000 && brief < 100 * 55000);

    // What comes a calendar's length late, or later, counts in full and leaves what has been
    // entered since as it is.
    uint64_t length = VGPU_CELLS * VGPU_CELL_NS;
    for (uint64_t late = 1; late < 5; late++) {
        uint64_t from = AT - late * length;
        CHECK(vgpu_busy_union_enter(&calendar, AT + 15 * MS, from, from + 10 * MS) == 10 * MS);
        CHECK(vgpu_busy_union_spread(&calendar, AT + 15 * MS, from, from + 10 * MS, 5 * MS) == 5 * MS);
    }
    CHECK(enter(AT, AT + 10 * MS) <= 2 * VGPU_CELL_NS);
    CHECK(vgpu_busy_union_enter(&calendar, AT + 20 * MS, AT - 2000 * MS, AT - 1000 * MS) == 1000 * MS);

    // Four streams that worked at some moments of the same time: all of it counts that has room
    // in there.
    for (uint64_t ns = 300001; ns <= 2 * MS; ns += 170000) {
        uint64_t at = AT + 100 * MS + ns * 50, all = 0;
        for (int i = 0; i < 4; i++)
            all += vgpu_busy_union_spread(&calendar, at + MS, at, at + MS, ns / 4);
        CHECK(all <= MS + 2 * VGPU_CELL_NS && all + 8 >= (ns < MS ? ns : MS));
    }
    CHECK(vgpu_busy_union_spread(&calendar, AT + 300 * MS, AT - 1000 * MS, AT + 300 * MS, 250000) == 250000);

    // Some of that time is taken: it was at the other moments, as far as there are any.
    CHECK(enter(AT + 320 * MS, AT + 321 * MS) == MS);
    uint64_t some = vgpu_busy_union_spread(&calendar, AT + 322 * MS, AT + 320 * MS, AT + 322 * MS, 500000);
    CHECK(some + 2 >= 500000 && some <= 500000);
    uint64_t rest = vgpu_busy_union_spread(&calendar, AT + 322 * MS, AT + 320 * MS, AT + 322 * MS, 3 * MS / 2);
    CHECK(rest + VGPU_CELL_NS >= MS / 2 && rest <= MS / 2 + 2 * VGPU_CELL_NS);
    for (int i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, enter_all, &sums[i]);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        sum += sums[i];
    }
    CHECK(sum >= 100 * MS && sum <= 100 * MS + 2 * VGPU_CELL_NS);
    return 0;
}
