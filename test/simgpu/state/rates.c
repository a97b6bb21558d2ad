// SPDX-License-Identifier: Apache-2.0
//
// rates.c: how fast clients run that have a ceiling (MPS thread percentages).
//
// Invariants:
// - Rates add up to no more than SIM_RATE, and no client's passes its
//   ceiling. What ceilings leave over goes to those that can use it, equally.
// - Rates are whole parts of SIM_RATE; what rounding to nanoseconds holds back is
//   carried over, so that looking often costs nobody time.
#include "state.h"

// sim_rates fills in how much of the device each of the running clients gets.
void sim_rates(struct sim_work *const running[], unsigned n, uint32_t rates[]) {
    uint32_t capacity = SIM_RATE;
    unsigned open = n;
    for (unsigned i = 0; i < n; i++) rates[i] = 0;
    for (bool again = true; again && open;) {
        uint32_t fair = capacity / open;
        again = false;
        for (unsigned i = 0; i < n; i++) {
            if (rates[i] || !running[i]->rate || running[i]->rate > fair) continue;
            rates[i] = running[i]->rate;
            capacity -= rates[i];
            open--;
            again = true;
            break;  // what is left is more for each of the others
        }
    }
    for (unsigned i = 0; i < n; i++)
        if (!rates[i]) rates[i] = capacity / open;
}

// sim_time_for returns how long more nanoseconds of work take, at least; of long
// work it tells no more than that it is long.
uint64_t sim_time_for(uint64_t more, uint32_t carry, uint32_t rate) {
    const uint64_t longest = 1000000000000ull;
    if (!rate || more > longest) return longest;
    return (more * SIM_RATE - carry + rate - 1) / rate;
}

// sim_sms returns the SMs that a thread percentage leaves, of which the hardware
// gives whole pairs.
unsigned sim_sms(unsigned sms, double percent) {
    unsigned n = (unsigned)((double)sms * percent / 100 + 1e-9) / 2 * 2;
    return n < 2 ? 2 : n;
}
