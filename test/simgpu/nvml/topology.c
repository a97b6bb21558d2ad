// SPDX-License-Identifier: Apache-2.0
//
// topology.c: where a device sits: NUMA node, CPUs, links to its neighbours.
//
// Invariants:
// - The machine's CPUs are divided evenly, in order, among the NUMA nodes that
//   the state file's devices name.
// - Two devices have in common what their PCIe paths begin with; without that, their
//   NUMA node or nothing.
// - A device whose NVLinks lead nowhere answers as one without: NOT_SUPPORTED.
// - The other end of a link is told whether this process may use it or not.
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>
#include <unistd.h>

#define BITS (8 * sizeof(unsigned long))

static unsigned numa_nodes(void) {
    unsigned n = 1;
    for (unsigned d = 0; d < nv->device_count; d++)
        if (nv->devices[d].place.numa_node >= n) n = nv->devices[d].place.numa_node + 1;
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
    unsigned all = cpus > 0 ? (unsigned)cpus : 1, nodes = numa_nodes(), node = t.d->place.numa_node;
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
    return set_bits(set, size, t.d->place.numa_node, t.d->place.numa_node + 1);
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

static nvmlGpuTopologyLevel_t ancestor(const struct sim_device *a, const struct sim_device *b) {
    unsigned n = 0;
    while (n < a->place.pcie_depth && n < b->place.pcie_depth && a->place.pcie[n] == b->place.pcie[n]) n++;
    if (n > 1 && n == a->place.pcie_depth && n == b->place.pcie_depth) return NVML_TOPOLOGY_SINGLE;
    if (n > 1) return NVML_TOPOLOGY_MULTIPLE;
    if (n == 1) return NVML_TOPOLOGY_HOSTBRIDGE;
    return a->place.numa_node == b->place.numa_node ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
                                                 nvmlGpuTopologyLevel_t *level) {
    struct target a, b;
    NEED(level);
    CHECK(find_gpu(device1, &a));
    CHECK(find_gpu(device2, &b));
    if (a.dev == b.dev && !a.d->place.pcie_depth) return NVML_ERROR_NOT_SUPPORTED;
    *level = a.dev == b.dev ? NVML_TOPOLOGY_INTERNAL : ancestor(a.d, b.d);
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
    bool linked = sim_linked(nv, a.dev, b.dev);
    bool wants_link = index == NVML_P2P_CAPS_INDEX_NVLINK || index == NVML_P2P_CAPS_INDEX_ATOMICS;
    *status = wants_link && !linked ? NVML_P2P_STATUS_NOT_SUPPORTED : NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
}

// find_link gives the other end of a link too, as sim_link does.
static nvmlReturn_t find_link(nvmlDevice_t device, unsigned link, struct target *t, int *end) {
    NEED(link < NVML_NVLINK_MAX_LINKS);
    CHECK(find_gpu(device, t));
    if (sim_link(nv, t->dev, 0) == SIM_NO_LINK) return NVML_ERROR_NOT_SUPPORTED;
    *end = sim_link(nv, t->dev, link);
    return *end == SIM_NO_LINK ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                      nvmlEnableState_t *active) {
    struct target t;
    int end;
    NEED(active);
    CHECK(find_link(device, link, &t, &end));
    *active = atomic_load(&t.d->links_down) || (end < SIM_SWITCH && atomic_load(&nv->devices[end].links_down))
                  ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

// Of all the fields there is the state of a link, which newer programs ask for here.
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    struct target t;
    NEED(values && count > 0);
    CHECK(find(device, &t));
    for (nvmlFieldValue_t *v = values; v < values + count; v++) {
        nvmlEnableState_t active = NVML_FEATURE_DISABLED;
        v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        if (v->fieldId != NVML_FI_DEV_NVLINK_GET_STATE) continue;
        v->nvmlReturn = nvmlDeviceGetNvLinkState(device, v->scopeId, &active);
        v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        v->value.uiVal = active;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version) {
    struct target t;
    int end;
    NEED(version);
    CHECK(find_link(device, link, &t, &end));
    *version = t.m->major >= 9 ? NVML_NVLINK_VERSION_4_0 : NVML_NVLINK_VERSION_3_0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                           nvmlNvLinkCapability_t capability, unsigned int *has) {
    struct target t;
    int end;
    NEED(has && capability < NVML_NVLINK_CAP_COUNT);
    CHECK(find_link(device, link, &t, &end));
    *has = capability != NVML_NVLINK_CAP_SLI_BRIDGE;
    return NVML_SUCCESS;
}

// A switch's bus numbers follow those of all devices.
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
    struct target t;
    int end;
    NEED(pci);
    CHECK(find_link(device, link, &t, &end));
    if (end < SIM_SWITCH) {
        fill_pci(&nv->devices[end], pci);
        return NVML_SUCCESS;
    }
    fill_place(0, 0xc0 + (unsigned)(end - SIM_SWITCH), pci);
    pci->pciDeviceId = t.m->major >= 9 ? 0x22a310de : 0x1af110de;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
    nvmlPciInfo_t full;
    NEED(pci);
    CHECK(nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &full));
    memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t *type) {
    struct target t;
    int end;
    NEED(type);
    CHECK(find_link(device, link, &t, &end));
    *type = end < SIM_SWITCH ? NVML_NVLINK_DEVICE_TYPE_GPU : NVML_NVLINK_DEVICE_TYPE_SWITCH;
    return NVML_SUCCESS;
}

// What all versions tell; behind a switch without a fabric, the probe hasn't started.
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
    struct target t;
    NEED(info);
    CHECK(find_gpu(device, &t));
    if (t.m->major < 9) return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlGpuFabricInfo_t){.status = NVML_SUCCESS, .cliqueId = t.d->place.clique};
    memcpy(info->clusterUuid, t.d->place.cluster, sizeof info->clusterUuid);
    info->state = t.d->place.fabric     ? NVML_GPU_FABRIC_STATE_COMPLETED
                  : t.d->place.switches ? NVML_GPU_FABRIC_STATE_NOT_STARTED
                                  : NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info) {
    nvmlGpuFabricInfo_t all;
    NEED(info);
    if (info->version != nvmlGpuFabricInfo_v2 && info->version != nvmlGpuFabricInfo_v3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    CHECK(nvmlDeviceGetGpuFabricInfo(device, &all));
    memcpy(info->clusterUuid, all.clusterUuid, sizeof all.clusterUuid);
    info->status = all.status;
    info->cliqueId = all.cliqueId;
    info->state = all.state;
    info->healthMask = 0;
    if (info->version == nvmlGpuFabricInfo_v3)
        info->healthSummary = all.state == NVML_GPU_FABRIC_STATE_COMPLETED ? NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
                                                                          : NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

static unsigned generation(const struct target *t) { return t->m->major >= 9 ? 5 : t->m->major == 8 ? 4 : 3; }

FACT(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, find_gpu, generation(&t))
FACT(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, find_gpu, generation(&t))
FACT(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, find_gpu, 16)
FACT(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, find_gpu, 16)
