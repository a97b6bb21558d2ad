// SPDX-License-Identifier: Apache-2.0
//
// Attaches the process to its limits, on its first call of CUDA and again in a
// child of fork.
//
// Invariants:
//   1. Until attached, nothing is allowed: every charge fails, cuInit fails.
//   2. All state that a child of fork must not inherit is in one mapping that the
//      kernel wipes in the child (MADV_WIPEONFORK): the child finds itself not
//      attached and its locks free, at no cost to anybody else.
//   3. No process global is touched: no signal handler, umask, environment,
//      atexit; one descriptor is opened, close-on-exec.

#include "memory/attach.h"

#include "memory/audit.h"
#include "runtime/limits.h"

#include <string.h>
#include <sys/mman.h>

static struct vgpu_process *page(void) {
    struct vgpu_process *process = atomic_load(&vgpu_process_page);
    if (process != NULL)
        return process;
    process = mmap(NULL, sizeof *process, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (process == MAP_FAILED)
        return NULL;
    struct vgpu_process *other = NULL;
    if (madvise(process, sizeof *process, MADV_WIPEONFORK) != 0 ||
        !atomic_compare_exchange_strong(&vgpu_process_page, &other, process)) {
        munmap(process, sizeof *process);
        return other;
    }
    return process;
}

static bool refuse(struct vgpu_process *process, const char *path, const char *wrong) {
    VGPU_LOG_ONCE("CUDA refused: %s: %s", path, wrong);
    atomic_store(&process->refused, true);
    return false;
}

// Under process->lock.
static bool read_limits(struct vgpu_process *process) {
    if (process->limits.device_count != 0)
        return true;
    const char *wrong = vgpu_limits_read(VGPU_LIMITS_PATH, &process->limits);
    return wrong == NULL || refuse(process, VGPU_LIMITS_PATH, wrong);
}

// Which of the limits each CUDA device has. A driver that isn't initialised
// answers with an error, which goes to the caller; a later call tries again.
static cu_result find_devices(struct vgpu_process *process) {
    int count = 0;
    cu_result result = VGPU_REAL(cuDeviceGetCount)(&count);
    process->device_count = count;
    memset(process->index, -1, sizeof process->index);
    memset(process->ordinal, -1, sizeof process->ordinal);
    for (int i = 0; result == CU_OK && i < count && i < VGPU_ORDINALS; i++) {
        cu_device device;
        cu_uuid uuid;
        result = VGPU_REAL(cuDeviceGet)(&device, i);
        if (result == CU_OK)
            result = vgpu_has(VGPU_cuDeviceGetUuid_v2)
                         ? VGPU_REAL(cuDeviceGetUuid_v2)(&uuid, device)
                         : VGPU_REAL(cuDeviceGetUuid)(&uuid, device);
        if (result != CU_OK || device < 0 || device >= VGPU_ORDINALS)
            break;
        for (uint32_t d = 0; d < process->limits.device_count; d++) {
            if (memcmp(process->limits.device[d].uuid, uuid.bytes, sizeof uuid.bytes) == 0) {
                process->index[device] = (int8_t)d;
                process->ordinal[d] = (int16_t)device;
            }
        }
    }
    return result;
}

cu_result vgpu_attach_begin(void) {
    struct vgpu_process *process = page();
    if (process == NULL) {
        VGPU_LOG_ONCE("CUDA refused: no memory, a kernel before 4.14, or no right to call madvise");
        return CU_NOT_PERMITTED;
    }
    vgpu_lock(&process->lock);
    bool good = !atomic_load(&process->refused) && read_limits(process);
    vgpu_unlock(&process->lock);
    return good ? CU_OK : CU_NOT_PERMITTED;
}

struct vgpu_process *vgpu_attach(cu_result *why) {
    *why = vgpu_attach_begin();
    if (*why != CU_OK)
        return NULL;
    struct vgpu_process *process = atomic_load(&vgpu_process_page);
    vgpu_lock(&process->lock);
    if (!atomic_load(&process->attached) && !atomic_load(&process->refused)) {
        *why = find_devices(process);
        if (*why == CU_OK) {
            static const uint64_t always = 1;
            process->pace = vgpu_pace_map(VGPU_PACE_PATH, process->limits.device_count);
            const char *wrong = process->pace != NULL && vgpu_load(&process->pace->damaged) != 0
                                    ? "overwritten by a process of this container"
                                    : vgpu_region_join(VGPU_COUNTERS_PATH, process->limits.device_count, &process->region);
            process->launches.limited = process->pace != NULL ? &process->pace->plain_devices : NULL;
            for (uint32_t d = 0; d < process->limits.device_count; d++)
                if (process->limits.device[d].core_percent % 100 != 0 || process->limits.device[d].flags == VGPU_IDLE)
                    process->launches.limited = &always;
            process->launches.measures = process->launches.limited != NULL;
            vgpu_forget_contexts(); // a parent's handles mean nothing here
            process->first_epoch = vgpu_epoch();
            if (wrong == NULL)
                atomic_store(&process->attached, true);
            else
                refuse(process, VGPU_COUNTERS_PATH, wrong);
        }
    }
    if (atomic_load(&process->refused))
        *why = CU_NOT_PERMITTED;
    vgpu_unlock(&process->lock);
    if (*why != CU_OK)
        return NULL;
    vgpu_audit(process, false); // what earlier processes left behind
    return process;
}
