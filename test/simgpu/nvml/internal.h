// SPDX-License-Identifier: Apache-2.0
//
// internal.h: what the files of the simulated libnvidia-ml.so.1 share.
//
// Invariants:
// - Handles are addresses of static records and stay valid while the process
//   lives; whether the thing behind one still exists is checked at every call.
// - A call that the simulation does not serve answers NVML_ERROR_NOT_SUPPORTED
//   (unsupported.awk makes those), never a made-up value.
#ifndef VERNIER_SIMGPU_NVML_INTERNAL_H
#define VERNIER_SIMGPU_NVML_INTERNAL_H

// Everything else in the library is hidden; NVML's own names are exported.
#pragma GCC visibility push(default)
#include "nvml.h"
#pragma GCC visibility pop

#include "../state/state.h"

struct nvmlDevice_st {
    unsigned dev;     // index in the state file
    unsigned gi, ci;  // SIM_WHOLE_GPU for a full GPU
};

struct nvmlGpuInstance_st {
    unsigned dev, gi;
};

struct nvmlComputeInstance_st {
    unsigned dev, gi, ci;
};

// Set by nvmlInit, NULL again after the last nvmlShutdown.
extern struct sim_state *nv;

// What a checked handle leads to.
struct target {
    struct sim_device *d;
    const struct sim_model *m;
    unsigned dev, gi, ci;
};

nvmlReturn_t find(nvmlDevice_t h, struct target *t);
// As find, but a MIG handle is refused with NVML_ERROR_NOT_SUPPORTED or, for
// calls whose documentation says so, another code.
nvmlReturn_t find_gpu(nvmlDevice_t h, struct target *t);
nvmlDevice_t handle(unsigned dev, unsigned gi, unsigned ci);
nvmlReturn_t copy_text(char *to, unsigned length, const char *from);
// identity.c
void fill_place(unsigned domain, unsigned bus, nvmlPciInfo_t *pci);
void fill_pci(const struct sim_device *d, nvmlPciInfo_t *pci);
bool is_root(void);
bool mismatched(const struct sim_state *s);

#define CHECK(call)                              \
    do {                                         \
        nvmlReturn_t ret_ = (call);              \
        if (ret_ != NVML_SUCCESS) return ret_;   \
    } while (0)

#define NEED(arg) \
    if (!(arg)) return NVML_ERROR_INVALID_ARGUMENT

// A call that answers one fact of the device t that find leads to.
#define FACT(name, type, find, fact)                       \
    nvmlReturn_t name(nvmlDevice_t device, type *answer) { \
        struct target t;                                   \
        NEED(answer);                                      \
        CHECK(find(device, &t));                           \
        *answer = (fact);                                  \
        return NVML_SUCCESS;                               \
    }

#endif
