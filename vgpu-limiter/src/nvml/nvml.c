// SPDX-License-Identifier: Apache-2.0
//
// NVML's views: nvidia-smi and NVML clients in the container see the slice as
// the device and the container's own processes.
//
// Invariants:
//   1. The driver is asked first: its errors, and the shape of its answer, stand.
//   2. Without valid limits a view is refused, never the device's own shown.
//   3. Used never exceeds total, neither the device's nor that of all processes
//      together, whatever changes while they are read.

#include "nvml/nvml.h"

#include "memory/charge.h"
#include "memory/ipc_share.h"
#include "runtime/limits.h"

#include <stdlib.h>
#include <unistd.h>

// NVML may be used without CUDA: then the process has no slot, and what it needs
// is only read. The mapping is kept for the next call.
struct vgpu_view {
    struct vgpu_limits limits;
    struct vgpu_region region;
    const struct vgpu_pace *pace; // NULL where there is none
};

static struct vgpu_view *_Atomic the_view;

static struct vgpu_view *open_view(void) {
    struct vgpu_view *view = atomic_load(&the_view);
    if (view != NULL)
        return view;
    view = calloc(1, sizeof *view);
    if (view == NULL)
        return NULL;
    const char *path = VGPU_LIMITS_PATH;
    const char *wrong = vgpu_limits_read(path, &view->limits);
    if (wrong == NULL) {
        path = VGPU_COUNTERS_PATH;
        wrong = vgpu_region_view(path, view->limits.device_count, &view->region);
    }
    if (wrong == NULL)
        view->pace = vgpu_pace_map(VGPU_PACE_PATH, view->limits.device_count);
    struct vgpu_view *other = NULL;
    if (wrong != NULL) {
        VGPU_LOG_ONCE("NVML's view refused: %s: %s", path, wrong);
        free(view);
        return NULL;
    }
    if (!atomic_compare_exchange_strong(&the_view, &other, view)) { // another thread's is as good
        free(view); // its mapping and descriptor stay: see region.c
        return other;
    }
    return view;
}

// The index in the limits of an NVML device, -1 if the container has no share.
static int find_device(const struct vgpu_view *view, nv_device device) {
    char text[NV_UUID_CHARS] = {0}, own[NV_UUID_CHARS];
    if (VGPU_REAL(nvmlDeviceGetUUID)(device, text, sizeof text) != NV_OK)
        return -1;
    for (uint32_t i = 0; i < view->limits.device_count; i++) {
        vgpu_uuid_text(view->limits.device[i].uuid, own, sizeof own);
        if (strcmp(text, own) == 0)
            return (int)i;
    }
    return -1;
}

// What the living processes have on a device at one instant.
struct reading {
    unsigned count;
    uint32_t slot[VGPU_SLOTS];
    uint64_t state[VGPU_SLOTS], begun[VGPU_SLOTS], bytes[VGPU_SLOTS];
    bool changed[VGPU_SLOTS];
    uint64_t used; // with what is left to them by others
};

// How often a device is read until no memory has changed during the reading.
#define READINGS 16

// Reads it, and tells whether nothing changed. What did change counts last, as far
// as there is room: memory that passed from one process to another by then may
// have been read at both.
static bool read_once(const struct vgpu_slice *slice, struct reading *reading) {
    const struct vgpu_counters *counters = slice->view->region.counters;
    bool *changed = reading->changed, any = false;
    uint64_t charged = vgpu_load(&counters->header.device[slice->device].memory) & VGPU_BYTES_MASK;
    uint64_t room = charged < slice->total ? charged : slice->total;
    for (unsigned i = 0; i < reading->count; i++) {
        const struct vgpu_slot *slot = &counters->slot[reading->slot[i]];
        reading->state[i] = vgpu_load(&slot->state);
        changed[i] = !vgpu_read_held(slot, slice->device, &reading->begun[i], &reading->bytes[i]);
        if (!vgpu_slot_is_live(reading->state[i]))
            reading->bytes[i] = 0;
    }
    reading->used = vgpu_unowned_bytes(counters, slice->device, false);
    for (unsigned i = 0; i < reading->count; i++) {
        const struct vgpu_slot *slot = &counters->slot[reading->slot[i]];
        changed[i] |= vgpu_begun(slot, slice->device) != reading->begun[i] ||
                      vgpu_load(&slot->state) != reading->state[i];
        any |= changed[i];
        if (changed[i] && reading->bytes[i] > VGPU_BYTES_MASK / 2)
            reading->bytes[i] = 0; // less than nothing
    }
    uint64_t left = slice->total;
    for (unsigned pass = 0; pass < 2; pass++)
        for (unsigned i = 0; i < reading->count; i++) {
            if (changed[i] != (pass == 1))
                continue;
            if (reading->bytes[i] > left)
                reading->bytes[i] = left;
            left -= reading->bytes[i];
            reading->used += reading->bytes[i];
        }
    if (reading->used > room)
        reading->used = room;
    return !any;
}

// To be freed, being too much for a small stack; NULL without memory.
static struct reading *read_device(const struct vgpu_slice *slice) {
    const struct vgpu_region *region = &slice->view->region;
    uint32_t slots = vgpu_region_slots(region->counters);
    struct reading *reading = malloc(sizeof *reading);
    if (reading == NULL)
        return NULL;
    reading->count = 0;
    for (uint32_t i = 0; i < slots; i++)
        if (vgpu_region_lives(region, i))
            reading->slot[reading->count++] = i;
    for (int i = 0; i < READINGS && !read_once(slice, reading); i++)
        ;
    return reading;
}

nv_result vgpu_slice_find(nv_device device, struct vgpu_slice *out) {
    *out = (struct vgpu_slice){.view = open_view()};
    if (out->view == NULL)
        return NV_NO_PERMISSION;
    out->device = find_device(out->view, device);
    if (out->device < 0)
        return NV_NO_PERMISSION;
    uint64_t charged = vgpu_load(&out->view->region.counters->header.device[out->device].memory);
    out->total = vgpu_memory_limit(&out->view->limits, out->view->pace, out->device, charged);
    return NV_OK;
}

bool vgpu_slice_has(const struct vgpu_slice *slice, uint32_t pid) {
    const struct vgpu_region *region = &slice->view->region;
    for (uint32_t i = 0; i < vgpu_region_slots(region->counters); i++)
        if ((uint32_t)region->counters->slot[i].pid == pid && vgpu_region_lives(region, i))
            return true;
    return false;
}

// Finds the slice, and what is in use of it. On an error both are zero.
static nv_result find_used(nv_device device, struct vgpu_slice *slice, uint64_t *used) {
    nv_result result = vgpu_slice_find(device, slice);
    *used = 0;
    if (result != NV_OK)
        return result;
    struct reading *reading = read_device(slice);
    if (reading == NULL) {
        slice->total = 0;
        return NV_MEMORY;
    }
    *used = reading->used;
    free(reading);
    return NV_OK;
}

nv_result nvmlDeviceGetMemoryInfo(nv_device device, struct nv_memory *memory) {
    struct vgpu_slice slice;
    uint64_t used;
    nv_result result = VGPU_REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result != NV_OK)
        return result;
    result = find_used(device, &slice, &used);
    *memory = (struct nv_memory){slice.total, slice.total - used, used};
    return result;
}

nv_result nvmlDeviceGetMemoryInfo_v2(nv_device device, struct nv_memory_v2 *memory) {
    struct vgpu_slice slice;
    uint64_t used;
    nv_result result = VGPU_REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result != NV_OK)
        return result;
    result = find_used(device, &slice, &used);
    *memory = (struct nv_memory_v2){memory->version, slice.total, 0, slice.total - used, used};
    return result;
}

// Fills a list by NVML's rules: for one that is too small the answer is the size needed.
static nv_result list(const struct vgpu_slice *slice, unsigned *count, void *entries, size_t size,
                      void (*fill)(void *entry, uint32_t pid, uint64_t used)) {
    unsigned n = 0;
    struct reading *reading = read_device(slice);
    if (reading == NULL)
        return NV_MEMORY;
    for (unsigned i = 0; i < reading->count; i++) {
        uint32_t pid = (uint32_t)slice->view->region.counters->slot[reading->slot[i]].pid;
        if (reading->bytes[i] == 0)
            continue;
        if (n < *count && entries != NULL)
            fill((char *)entries + n * size, pid, reading->bytes[i]);
        n++;
    }
    free(reading);
    bool fits = n == 0 || (n <= *count && entries != NULL);
    *count = n;
    return fits ? NV_OK : NV_INSUFFICIENT_SIZE;
}

static void fill_v1(void *entry, uint32_t pid, uint64_t used) {
    *(struct nv_process_v1 *)entry = (struct nv_process_v1){pid, used};
}
static void fill_v2(void *entry, uint32_t pid, uint64_t used) {
    *(struct nv_process_v2 *)entry =
        (struct nv_process_v2){pid, used, NV_NO_INSTANCE, NV_NO_INSTANCE};
}
static void fill_detail(void *entry, uint32_t pid, uint64_t used) {
    *(struct nv_process_detail *)entry =
        (struct nv_process_detail){pid, used, NV_NO_INSTANCE, NV_NO_INSTANCE, NV_VALUE_NOT_AVAILABLE};
}

// Answers for a list of processes; fill is NULL for one in which nobody ever is.
static nv_result list_processes(enum vgpu_hook hook, nv_device device, unsigned *count, void *entries,
                                size_t size, void (*fill)(void *, uint32_t, uint64_t)) {
    struct vgpu_slice slice;
    nv_result (*real)(nv_device, unsigned *, void *) = vgpu_real(hook);
    unsigned none = 0;
    nv_result result = real(device, count != NULL ? &none : NULL, NULL);
    if (result != NV_OK && result != NV_INSUFFICIENT_SIZE)
        return result;
    if (fill == NULL) {
        *count = 0;
        return NV_OK;
    }
    if ((result = vgpu_slice_find(device, &slice)) != NV_OK)
        return result;
    return list(&slice, count, entries, size, fill);
}

#define LIST(name, entry, fill)                                                                 \
    nv_result name(nv_device device, unsigned *count, struct entry *entries) {                  \
        return list_processes(VGPU_##name, device, count, entries, sizeof(struct entry), fill); \
    }
LIST(nvmlDeviceGetComputeRunningProcesses, nv_process_v1, fill_v1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nv_process_v2, fill_v2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nv_process_v2, fill_v2)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nv_process_v1, NULL)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nv_process_v2, NULL)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nv_process_v2, NULL)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nv_process_v1, NULL)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nv_process_v2, NULL)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nv_process_v2, NULL)

nv_result nvmlDeviceGetRunningProcessDetailList(nv_device device,
                                                struct nv_process_detail_list *out) {
    if (out == NULL)
        return VGPU_REAL(nvmlDeviceGetRunningProcessDetailList)(device, NULL);
    struct nv_process_detail_list probe = {out->version, out->mode, 0, NULL};
    nv_result result = VGPU_REAL(nvmlDeviceGetRunningProcessDetailList)(device, &probe);
    struct vgpu_slice slice;
    if (result != NV_OK && result != NV_INSUFFICIENT_SIZE)
        return result;
    if ((result = vgpu_slice_find(device, &slice)) != NV_OK)
        return result;
    if (out->mode != NV_PROCESS_COMPUTE && out->mode != NV_PROCESS_ALL) {
        out->count = 0;
        return NV_OK;
    }
    return list(&slice, &out->count, out->processes, sizeof *out->processes, fill_detail);
}
