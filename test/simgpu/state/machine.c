// SPDX-License-Identifier: Apache-2.0
//
// machine.c: how real machines were seen to differ from the plain simulation, which
// are the profiles of simgpuctl create.
//
// Invariants:
// - A profile has what was seen on a machine (docs/measurements.md) and nothing else.
// - Without a profile every figure is 0: a call takes what the simulation takes for it.
#include "state.h"

#include <string.h>

static const struct sim_machine machines[] = {
    {.name = "h100-vm", .driver = "580.159.04", .context_mib = 518, .mps_context_mib = 168,
     .free_ns = 65000000, .percent_of_presence = 1,
     .call_ns = {[SIM_LAUNCH] = 4100, [SIM_EVENT_RECORD] = 1400, [SIM_EVENT_QUERY] = 300,
                 [SIM_MEM_ALLOC] = 1150, [SIM_MEM_ASYNC] = 800, [SIM_MEM_INFO] = 7700,
                 [SIM_GPM_SAMPLE] = 3600000}},
};

const struct sim_machine *sim_machine(const char *name) {
    for (unsigned i = 0; i < sizeof machines / sizeof *machines; i++)
        if (strcmp(machines[i].name, name) == 0) return &machines[i];
    return NULL;
}

// sim_spend keeps the processor busy, as the driver does.
void sim_spend(uint64_t ns) {
    for (uint64_t until = sim_now() + ns; sim_now() < until;) {
    }
}
