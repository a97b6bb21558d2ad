// SPDX-License-Identifier: Apache-2.0
//
// health.c: modes, clocks, temperature, power, ECC.
//
// Invariants:
// - Temperature and power follow the busy share of the last second between the
//   model's idle and busy figures; nothing else is simulated behind them.
// - ECC counters only change when a fault is injected.
#define _GNU_SOURCE
#include "internal.h"

static uint64_t busy_percent(struct target *t) {
    uint64_t now = sim_now();
    sim_lock_device(nv, t->dev);
    sim_advance(nv, t->dev, now);
    sim_unlock_device(nv, t->dev);
    return sim_percent(sim_busy_over(&t->d->buckets, now, 10), 10);
}

static unsigned power(struct target *t) {
    uint64_t span = t->m->power_limit_mw - t->m->idle_mw;
    return t->m->idle_mw + (unsigned)(span * busy_percent(t) / 100);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    struct target t;
    NEED(utilization);
    CHECK(find_gpu(device, &t));
    if (atomic_load(&t.d->mig_current)) return NVML_ERROR_NOT_SUPPORTED;
    utilization->gpu = (unsigned)busy_percent(&t);
    utilization->memory = 0;  // no memory traffic is simulated
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned int *temperature) {
    struct target t;
    NEED(temperature && sensor == NVML_TEMPERATURE_GPU);
    CHECK(find_gpu(device, &t));
    *temperature = t.m->idle_c + (unsigned)((t.m->busy_c - t.m->idle_c) * busy_percent(&t) / 100);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    unsigned celsius;
    NEED(temperature);
    if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    CHECK(nvmlDeviceGetTemperature(device, temperature->sensorType, &celsius));
    temperature->temperature = (int)celsius;
    return NVML_SUCCESS;
}

FACT(nvmlDeviceGetPowerUsage, unsigned int, find_gpu, power(&t))
FACT(nvmlDeviceGetPowerManagementLimit, unsigned int, find_gpu, t.m->power_limit_mw)
FACT(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, find_gpu, t.m->power_limit_mw)
FACT(nvmlDeviceGetEnforcedPowerLimit, unsigned int, find_gpu, t.m->power_limit_mw)
FACT(nvmlDeviceGetPerformanceState, nvmlPstates_t, find_gpu, NVML_PSTATE_0)
FACT(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, find_gpu, (nvmlEnableState_t)atomic_load(&t.d->persistence))
FACT(nvmlDeviceGetComputeMode, nvmlComputeMode_t, find, (nvmlComputeMode_t)atomic_load(&t.d->compute_mode))

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    struct target t;
    NEED(mhz && type < NVML_CLOCK_COUNT);
    CHECK(find_gpu(device, &t));
    *mhz = type == NVML_CLOCK_MEM ? t.m->mem_clock_mhz : t.m->sm_clock_mhz;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *mhz) {
    return nvmlDeviceGetClockInfo(device, type, mhz);
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode) {
    struct target t;
    NEED(mode == NVML_FEATURE_ENABLED || mode == NVML_FEATURE_DISABLED);
    CHECK(find_gpu(device, &t));
    if (!is_root()) return NVML_ERROR_NO_PERMISSION;
    atomic_store(&t.d->persistence, mode == NVML_FEATURE_ENABLED);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode) {
    struct target t;
    NEED(mode < NVML_COMPUTEMODE_COUNT);
    CHECK(find_gpu(device, &t));
    if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD) return NVML_ERROR_NOT_SUPPORTED;
    if (!is_root()) return NVML_ERROR_NO_PERMISSION;
    atomic_store(&t.d->compute_mode, mode);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current,
                                  nvmlEnableState_t *pending) {
    struct target t;
    NEED(current && pending);
    CHECK(find_gpu(device, &t));
    *current = *pending = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

// Volatile and aggregate counts are the same: the simulation has no reboot.
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t counter, unsigned long long *count) {
    struct target t;
    NEED(count && type < NVML_MEMORY_ERROR_TYPE_COUNT && counter < NVML_ECC_COUNTER_TYPE_COUNT);
    CHECK(find_gpu(device, &t));
    *count = atomic_load(type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? &t.d->ecc_corrected
                                                                  : &t.d->ecc_uncorrected);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                             nvmlEccCounterType_t counter,
                                             nvmlMemoryLocation_t location,
                                             unsigned long long *count) {
    NEED(count && location < NVML_MEMORY_LOCATION_COUNT);
    CHECK(nvmlDeviceGetTotalEccErrors(device, type, counter, count));
    if (location != NVML_MEMORY_LOCATION_DEVICE_MEMORY) *count = 0;
    return NVML_SUCCESS;
}
