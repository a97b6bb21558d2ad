// SPDX-License-Identifier: Apache-2.0
//
// topology.c: where a device sits: NUMA node, CPUs, links to its neighbours.
//
// Invariants:
// - The machine's CPUs are divided evenly, in order, among the NUMA nodes that
//   the state file's devices name.
// - Two devices on one NUMA node are NODE apart, others SYSTEM; models with
//   NVLink are linked all to all through a switch.
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>
#include <unistd.h>

#define BITS (8 * sizeof(unsigned long))

static unsigned numa_nodes(void) {
    unsigned n = 1;
    for (unsigned d = 0; d < nv->device_count; d++)
        if (nv->devices[d].numa_node >= n) n = nv->devices[d].numa_node + 1;
    return n;
}

static nvmlReturn_t set_bits(unsigned long *set, unsigned size, unsigned from, unsigned to) {
    NEED(set && size);
    memset(set, 0, size * sizeof *set);
    for (unsigned b = from; b < to; b++) {
        if (b / BITS >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
        set[b / BITS] |= 1ul << (b % BITS);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set) {
    struct target t;
    CHECK(find(device, &t));
    long cpus = sysconf(_SC_NPROCESSORS_CONF);
    unsigned all = cpus > 0 ? (unsigned)cpus : 1, nodes = numa_nodes(), node = t.d->numa_node;
    unsigned from = all * node / nodes, to = all * (node + 1) / nodes;
    if (to == from) to = from + 1;
    return set_bits(set, size, from, to);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int size,
                                                 unsigned long *set, nvmlAffinityScope_t scope) {
    NEED(scope == NVML_AFFINITY_SCOPE_NODE || scope == NVML_AFFINITY_SCOPE_SOCKET);
    return nvmlDeviceGetCpuAffinity(device, size, set);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size,
                                         unsigned long *set, nvmlAffinityScope_t scope) {
    struct target t;
    NEED(scope == NVML_AFFINITY_SCOPE_NODE || scope == NVML_AFFINITY_SCOPE_SOCKET);
    CHECK(find(device, &t));
    return set_bits(set, size, t.d->numa_node, t.d->numa_node + 1);
}

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node) {
    struct target t;
    // The call tells the NUMA node that a coherent GPU's own memory is; these
    // models' memory is none.
    NEED(node);
    CHECK(find(device, &t));
    return NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode) {
    struct target t;
    NEED(mode);
    CHECK(find(device, &t));
    if (mode->version != nvmlDeviceAddressingMode_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    mode->value = NVML_DEVICE_ADDRESSING_MODE_NONE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t *level) {
    struct target a, b;
    NEED(level);
    CHECK(find_gpu(device1, &a));
    CHECK(find_gpu(device2, &b));
    if (a.dev == b.dev)
        *level = NVML_TOPOLOGY_INTERNAL;
    else
        *level = a.d->numa_node == b.d->numa_node ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int *count, nvmlDevice_t *devices) {
    struct target t;
    NEED(count);
    CHECK(find_gpu(device, &t));
    unsigned n = 0;
    for (unsigned d = 0; d < nv->device_count; d++) {
        nvmlGpuTopologyLevel_t found;
        nvmlDevice_t other = handle(d, SIM_WHOLE_GPU, SIM_WHOLE_GPU);
        if (d == t.dev || !sim_device_permitted(nv, d) ||
            nvmlDeviceGetTopologyCommonAncestor(device, other, &found) != NVML_SUCCESS ||
            found != level)
            continue;
        if (devices && n < *count) devices[n] = other;
        n++;
    }
    bool fits = !devices || n <= *count;
    *count = n;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device1, nvmlDevice_t device2,
                                    nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t *status) {
    struct target a, b;
    NEED(status && index < NVML_P2P_CAPS_INDEX_UNKNOWN);
    CHECK(find_gpu(device1, &a));
    CHECK(find_gpu(device2, &b));
    bool linked = a.m->nvlinks && b.m->nvlinks;
    bool wants_link = index == NVML_P2P_CAPS_INDEX_NVLINK || index == NVML_P2P_CAPS_INDEX_ATOMICS;
    *status = wants_link && !linked ? NVML_P2P_STATUS_NOT_SUPPORTED : NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                      nvmlEnableState_t *active) {
    struct target t;
    NEED(active && link < NVML_NVLINK_MAX_LINKS);
    CHECK(find_gpu(device, &t));
    if (!t.m->nvlinks) return NVML_ERROR_NOT_SUPPORTED;
    NEED(link < t.m->nvlinks);
    *active = nv->device_count > 1 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

static nvmlReturn_t pcie(nvmlDevice_t device, unsigned *out, unsigned value) {
    struct target t;
    NEED(out);
    CHECK(find_gpu(device, &t));
    *out = value ? value : (t.m->major >= 9 ? 5u : t.m->major == 8 ? 4u : 3u);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *gen) {
    return pcie(device, gen, 0);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *gen) {
    return pcie(device, gen, 0);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *width) {
    return pcie(device, width, 16);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *width) {
    return pcie(device, width, 16);
}
