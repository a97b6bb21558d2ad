// SPDX-License-Identifier: Apache-2.0
//
// keeper: takes part in the clock as the first thread, for the tests: nobody else runs while
// it doesn't sleep. Standard input says what to do:
//
//   sleep NS    until then
//   await N     until so many other threads take part
//   over        nothing
//
// The answer is what the clock says, and whether all other threads have ended.

#include "clock.c"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define BEGINS (UINT64_C(1000) * 1000000000)
#define PATIENCE_S 100 // then a thread waits for another one by other means than the clock

int main(void) {
    char what[16];
    unsigned long long n;
    self = 0;
    atomic_store(&shared->now, BEGINS);
    atomic_store(&shared->threads, 1);
    while (scanf("%15s %llu", what, &n) == 2) {
        alarm(PATIENCE_S);
        if (strcmp(what, "sleep") == 0)
            pause_until(n);
        while (strcmp(what, "await") == 0 && atomic_load(&shared->threads) <= n)
            sched_yield();
        alarm(0);
        int over = 1;
        for (uint32_t i = 1; i < atomic_load(&shared->threads); i++)
            over = over && atomic_load(&shared->thread[i].until) == NEVER;
        printf("%llu %d\n", (unsigned long long)atomic_load(&shared->now), over);
        fflush(stdout);
    }
    _exit(0); // and wakes nobody
}
