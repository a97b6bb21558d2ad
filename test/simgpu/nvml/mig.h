// SPDX-License-Identifier: Apache-2.0
//
// mig.h: what the MIG files share.
#ifndef VERNIER_SIMGPU_NVML_MIG_H
#define VERNIER_SIMGPU_NVML_MIG_H

#include "internal.h"

// A GPU instance handle, checked, and what it leads to.
struct instance {
    struct target t;
    struct sim_gi *gi;
    const struct sim_profile *p;
};

nvmlReturn_t find_gi(nvmlGpuInstance_t h, struct instance *i);
nvmlGpuInstance_t gi_handle(unsigned dev, unsigned gi);
nvmlReturn_t mig_ready(nvmlDevice_t device, struct target *t);
bool mig_busy(unsigned dev, unsigned gi, unsigned ci);
void mig_changed(unsigned dev);
unsigned ci_slices(unsigned profile);

#endif
