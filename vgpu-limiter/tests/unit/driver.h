// SPDX-License-Identifier: Apache-2.0
//
// What the unit tests share that stand in for the driver: a process on one device.

#ifndef VGPU_UNIT_DRIVER_H
#define VGPU_UNIT_DRIVER_H

#include "check.h"
#include "compute/destroyed_streams.h"
#include "compute/throttle.h"
#include "compute/timing.h"
#include "memory/memory.h"

#include <string.h>

static struct vgpu_process process;
static _Thread_local cu_ctx current;

// The driver's function is the test's.
#define STAND_IN(symbol, function) atomic_store(&vgpu_reals[VGPU_##symbol], (void *)function)

static cu_result get_current(cu_ctx *ctx) {
    *ctx = current;
    return CU_OK;
}
static cu_result get_device(cu_device *device) {
    *device = 0;
    return CU_OK;
}
static cu_result exchange_mode(int *mode) { return *mode >= 0 ? CU_OK : CU_INVALID_VALUE; }

// Attaches the process to the counters with so much of the device, 0 percent for all of it.
static inline void attach(const char *counters, uint64_t bytes, uint32_t core) {
    static const uint64_t limited = 1;
    STAND_IN(cuCtxGetCurrent, get_current);
    STAND_IN(cuCtxGetDevice, get_device);
    STAND_IN(cuThreadExchangeStreamCaptureMode, exchange_mode);
    CHECK(counters != NULL && vgpu_region_join(counters, 1, &process.region) == NULL);
    process.limits.device_count = 1;
    process.limits.device[0].memory_bytes = bytes;
    process.limits.device[0].core_percent = core;
    process.launches.limited = core != 0 ? &limited : NULL;
    process.launches.measures = core != 0;
    process.device_count = 1;
    memset(process.index, -1, sizeof process.index);
    process.index[0] = 0;
    atomic_store(&process.attached, true);
    atomic_store(&vgpu_process_page, &process);
}

#endif
