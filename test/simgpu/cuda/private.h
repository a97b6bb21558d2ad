// SPDX-License-Identifier: Apache-2.0
//
// private.h: what NVIDIA's runtime library asks its driver for beside the API.
#ifndef VERNIER_SIMGPU_CUDA_PRIVATE_H
#define VERNIER_SIMGPU_CUDA_PRIVATE_H

#include "internal.h"

// What the runtime hashes, in its order.
struct integrity {
    uint32_t driver_version, runtime_version, process, thread;
    const void *interface, *table, *function;
    uint64_t seconds;
};
struct integrity_device {
    CUuuid uuid;
    int32_t domain, bus, device;
};

void integrity_answer(const struct integrity *asked, const struct integrity_device *devices,
                      unsigned n, unsigned char answer[16]);

#endif
