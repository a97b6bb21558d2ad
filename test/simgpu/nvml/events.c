// SPDX-License-Identifier: Apache-2.0
//
// events.c: event sets.
//
// Invariants:
// - A set delivers, in order and once each, the events that happened on its
//   registered devices after their registration.
// - Waiting sleeps in the kernel until the next event or the time-out.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>

#define SERVED                                                                            \
    (nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError |                     \
     nvmlEventTypeXidCriticalError | nvmlEventMigConfigChange)

struct nvmlEventSet_st {
    struct sim_state *state;
    uint32_t next;  // the first event not yet looked at
    uint64_t types[SIM_MAX_DEVICES];
    uint32_t since[SIM_MAX_DEVICES];
};

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    NEED(set);
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    set->handle = calloc(1, sizeof *set->handle);
    if (!set->handle) return NVML_ERROR_MEMORY;
    set->handle->state = nv;
    set->handle->next = atomic_load(&nv->event_seq);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    NEED(set.handle);
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    free(set.handle);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    struct target t;
    NEED(types);
    CHECK(find_gpu(device, &t));
    *types = SERVED;
    if (!t.m->profiles) *types &= ~(unsigned long long)nvmlEventMigConfigChange;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                      nvmlEventSet_t set) {
    struct target t;
    unsigned long long served;
    NEED(set.handle);
    CHECK(find_gpu(device, &t));
    CHECK(nvmlDeviceGetSupportedEventTypes(device, &served));
    if (types & ~served) return NVML_ERROR_NOT_SUPPORTED;
    if (!set.handle->types[t.dev]) set.handle->since[t.dev] = atomic_load(&nv->event_seq);
    set.handle->types[t.dev] |= types;
    return NVML_SUCCESS;
}

// next_event looks through what has happened since the last call.
static bool next_event(struct nvmlEventSet_st *set, nvmlEventData_t *data) {
    uint32_t seq = atomic_load(&set->state->event_seq);
    if (seq - set->next > SIM_MAX_EVENTS) set->next = seq - SIM_MAX_EVENTS;
    while (set->next != seq) {
        uint32_t n = set->next++;
        struct sim_event e = set->state->events[n % SIM_MAX_EVENTS];
        if (!(set->types[e.device] & e.type) || (int32_t)(n - set->since[e.device]) < 0) continue;
        *data = (nvmlEventData_t){.device = handle(e.device, SIM_WHOLE_GPU, SIM_WHOLE_GPU),
                                  .eventType = e.type,
                                  .eventData = e.data,
                                  .gpuInstanceId = e.gi,
                                  .computeInstanceId = e.ci};
        return true;
    }
    return false;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int ms) {
    NEED(set.handle && data);
    if (!nv) return NVML_ERROR_UNINITIALIZED;
    uint64_t deadline = sim_now() + ms * 1000000ull;
    while (!next_event(set.handle, data))
        if (!sim_event_wait(set.handle->state, set.handle->next, deadline))
            return NVML_ERROR_TIMEOUT;
    return NVML_SUCCESS;
}

// The first version leaves out the instance ids.
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int ms) {
    nvmlEventData_t full;
    NEED(data);
    CHECK(nvmlEventSetWait_v2(set, &full, ms));
    data->device = full.device;
    data->eventType = full.eventType;
    data->eventData = full.eventData;
    return NVML_SUCCESS;
}
