// SPDX-License-Identifier: Apache-2.0
//
// gpm.c: GPU performance monitoring, from Hopper on.
//
// Invariants:
// - Utilisation of the device and of its SMs is the device's busy time between the
//   two samples. The other metrics that the simulation serves are what simgpuctl
//   has set, 0 at first; the rest answer NOT_SUPPORTED, each by itself.
// - A sample is of a device as a whole: there is none of one in MIG mode.
#include "internal.h"

#include <stdlib.h>

struct nvmlGpmSample_st {
    unsigned dev;
    uint64_t at_ns, busy_ns;  // 0: nothing was taken yet
};

static bool supported(const struct target *t) { return t->m->major >= 9; }

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    struct target t;
    NEED(support);
    if (support->version != NVML_GPM_SUPPORT_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    CHECK(find_gpu(device, &t));
    support->isSupportedDevice = supported(&t);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    NEED(sample);
    sample->handle = calloc(1, sizeof *sample->handle);
    return sample->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    NEED(sample.handle);
    free(sample.handle);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    struct target t;
    NEED(sample.handle);
    CHECK(find_gpu(device, &t));
    if (!supported(&t) || atomic_load(&t.d->mig_current)) return NVML_ERROR_NOT_SUPPORTED;
    sim_takes(nv, SIM_GPM_SAMPLE);
    uint64_t now = sim_now();
    sim_lock_device(nv, t.dev);
    sim_advance(nv, t.dev, now);
    *sample.handle = (struct nvmlGpmSample_st){t.dev, now, atomic_load(&t.d->busy_ns)};
    sim_unlock_device(nv, t.dev);
    return NVML_SUCCESS;
}

// measure fills in one metric between two samples.
static void measure(const struct nvmlGpmSample_st *from, const struct nvmlGpmSample_st *to,
                    nvmlGpmMetric_t *metric) {
    metric->nvmlReturn = NVML_SUCCESS;
    switch (metric->metricId) {
    case NVML_GPM_METRIC_GRAPHICS_UTIL:
    case NVML_GPM_METRIC_SM_UTIL:
        metric->value = 100.0 * (double)(to->busy_ns - from->busy_ns) / (double)(to->at_ns - from->at_ns);
        return;
    case NVML_GPM_METRIC_SM_OCCUPANCY:
    case NVML_GPM_METRIC_DRAM_BW_UTIL:
    case NVML_GPM_METRIC_PCIE_TX_PER_SEC:
    case NVML_GPM_METRIC_PCIE_RX_PER_SEC:
    case NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC:
    case NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC:
        metric->value = atomic_load(&nv->devices[to->dev].gpm[metric->metricId]) / 1000.0;
        return;
    }
    metric->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get) {
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    NEED(get);
    if (get->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct nvmlGpmSample_st *from = get->sample1.handle, *to = get->sample2.handle;
    NEED(from && to && get->numMetrics <= NVML_GPM_METRIC_MAX);
    NEED(from->at_ns && from->dev == to->dev && from->at_ns < to->at_ns);
    for (unsigned i = 0; i < get->numMetrics; i++)
        measure(from, to, &get->metrics[i]);
    return NVML_SUCCESS;
}
