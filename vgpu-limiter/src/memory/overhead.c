// SPDX-License-Identifier: Apache-2.0
//
// How much contexts and modules take is the driver's secret. NVML says how much
// each process holds, so the difference to what the process is charged is it.
//
// Invariants:
//   1. A context is charged before it is created what the container's first one was
//      seen to take. That one is charged afterwards, and undone if it doesn't fit; others
//      wait until it has been seen, or its process has died, but not for one that has
//      been stopped, nor where there are no locks to tell.
//      Where NVML doesn't know processes by their own numbers, each looks at its list
//      before and after its first context, or it couldn't measure its modules.
//   2. The difference is never too large: what other threads are about to
//      allocate is charged already, and what they have freed is looked for before NVML
//      is asked and afterwards. Where something may have come and gone in between, or a
//      pool have grown by more than was charged before, it is asked again; where that
//      is so each time, the least of some counts. What it misses, the next one finds.
//      In a process with managed or imported memory, of which NVML may count less
//      or more than is charged, a module is what the difference has grown by. What another
//      thread has charged and not allocated yet, or freed and not uncharged, makes it too
//      small before: NVML is asked until the greatest has come twice. Who takes longer for
//      that than NVML does is taken for the module.
//   3. Without NVML's word the charge stays as it was made.

#include "memory/overhead.h"

#include "memory/own_memory.h"
#include "memory/pool.h"

#include <poll.h>

// For so long a context waits for the container's first one.
#define PATIENCE_MS 10000

// How often NVML is asked until nothing comes and goes while it answers.
#define LOOKS 16

// What contexts are known to take. `measured`: it isn't known, or this one is to be
// measured anyway if it is the process's first.
static uint64_t expected(const struct vgpu_process *process, int device, bool *unknown, bool *measured) {
    uint64_t seen = vgpu_load(&process->region.counters->header.device[device].context);
    *unknown = seen == 0;
    *measured = seen == 0 || (seen & VGPU_HOST_NUMBERS) != 0;
    return seen != 0 ? (seen & ~VGPU_HOST_NUMBERS) - 1 : 0;
}

// What NVML says that the process holds beyond what it is charged, the call's own
// charge aside; negative where managed memory lies elsewhere.
struct beyond {
    int64_t least, most; // by what was charged before NVML was asked and afterwards
    bool surely;         // no less was charged at any moment in between, and no more
};

static int64_t with_sign(uint64_t held) { return (int64_t)(held << 16) >> 16; }

// False if NVML doesn't tell.
static bool look(const struct vgpu_call *call, struct beyond *beyond) {
    const struct vgpu_slot *slot = call->process->region.slot;
    uint64_t used, begun, held, unused;
    bool rests = vgpu_read_held(slot, call->here.device, &begun, &held);
    int64_t before = with_sign(held);
    if (!vgpu_own_memory(call->process, call->here.device, &used))
        return false;
    bool grow = vgpu_pools_grow(call->process, call->here.device); // if not, it is charged by now
    vgpu_read_held(slot, call->here.device, &unused, &held);
    int64_t after = with_sign(held), all = (int64_t)(used + call->charged);
    beyond->least = all - (before > after ? before : after);
    beyond->most = all - (before < after ? before : after);
    beyond->surely = rests && !grow && vgpu_begun(slot, call->here.device) - begun <= 1;
    return true;
}

// No more than that, by invariant 2.
static bool beyond(const struct vgpu_call *call, int64_t *bytes) {
    struct beyond now = {0};
    int looks = 0;
    for (; looks < LOOKS && !now.surely && look(call, &now); looks++)
        if (looks == 0 || now.surely || now.least < *bytes)
            *bytes = now.least;
    return looks != 0;
}

// Reports whether there may be other things beyond the charge than the driver's own.
static bool is_mixed(struct vgpu_process *process) {
    return atomic_load(&process->nvml.managed) || atomic_load(&process->sharing.imports);
}

static uint64_t context_bytes(struct vgpu_call *call) {
    int64_t bytes;
    if (!beyond(call, &bytes))
        return call->charged;
    bytes = bytes > 0 ? bytes : 0;
    if (atomic_load(&call->process->nvml.managed) && (uint64_t)bytes < call->charged)
        return call->charged;
    if (atomic_load(&call->process->sharing.imports) && (uint64_t)bytes > call->charged)
        return call->charged;
    return (uint64_t)bytes;
}

// No less than that, as far as it is to be seen, by invariant 2: surely, or at most.
static bool beyond_before(const struct vgpu_call *call, int64_t *bytes) {
    struct beyond now;
    int64_t surely = INT64_MIN, most = INT64_MIN;
    bool twice = false;
    int looks = 0;
    for (; looks < LOOKS && !twice && look(call, &now); looks++) {
        twice = now.surely && now.least == surely;
        if (now.surely && now.least > surely)
            surely = now.least;
        if (now.most > most)
            most = now.most;
    }
    *bytes = surely != INT64_MIN ? surely : most;
    return looks != 0;
}

struct vgpu_beside vgpu_module_begin(const struct vgpu_call *call) {
    struct vgpu_beside before = {.mixed = is_mixed(call->process)};
    before.unknown = before.mixed && !beyond_before(call, &before.bytes);
    return before;
}

uint64_t vgpu_module_bytes(const struct vgpu_call *call, struct vgpu_beside before) {
    int64_t bytes;
    if (before.unknown || before.mixed != is_mixed(call->process) || !beyond(call, &bytes))
        return 0;
    return bytes > before.bytes ? (uint64_t)(bytes - before.bytes) : 0;
}

// Until it is known what a context takes, or no other process is about to learn it.
static uint64_t await_first(struct vgpu_call *call, int device, bool *measured) {
    bool unknown = true;
    uint64_t bytes = 0;
    call->cancel = vgpu_cancel_hold();
    enum vgpu_turn_taken turn = VGPU_TURN_OTHERS;
    for (int i = 0; i < PATIENCE_MS && unknown && turn == VGPU_TURN_OTHERS; i++) {
        if (i > 0)
            poll(NULL, 0, 1);
        turn = vgpu_region_take_turn(&call->process->region, (uint32_t)device);
        bytes = expected(call->process, device, &unknown, measured);
    }
    call->alone = turn == VGPU_TURN_OURS;
    if (!call->alone)
        vgpu_cancel_free(call->cancel);
    return bytes;
}

static void end_alone(const struct vgpu_call *call, int device) {
    if (!call->alone)
        return;
    vgpu_region_end_turn(&call->process->region, (uint32_t)device);
    vgpu_cancel_free(call->cancel);
}

cu_result vgpu_context_begin(struct vgpu_call *call, cu_device device) {
    bool unknown, measured;
    call->alone = false;
    call->process = vgpu_process(&call->result);
    if (call->process == NULL)
        return call->result;
    call->here.device = -1;
    if (device < 0 || device >= call->process->device_count)
        return CU_OK;
    int index = vgpu_device_index(call->process, device);
    if (index < 0)
        return call->result = CU_NOT_PERMITTED;
    uint64_t bytes = expected(call->process, index, &unknown, &measured);
    if (unknown && vgpu_can_measure(call->process, index))
        bytes = await_first(call, index, &measured);
    if (measured && atomic_load(&call->process->contexts.count[index]) == 0)
        vgpu_own_memory_begin(call->process, index);
    if (vgpu_begin_on(call, device, bytes) != CU_OK)
        end_alone(call, index);
    return call->result;
}

bool vgpu_context_commit(struct vgpu_call *call, void *context) {
    bool unknown, measured, first;
    if (call->here.device < 0)
        return true;
    // It may be known only since the charge was made.
    bool less = call->charged < vgpu_round(expected(call->process, call->here.device, &unknown, &measured));
    uint64_t bytes = call->charged;
    if (call->result == CU_OK) {
        vgpu_forget_contexts(); // one that has just gone may have had this handle
        first = atomic_fetch_add(&call->process->contexts.count[call->here.device], 1) == 0;
        if (measured || less || !first)
            bytes = context_bytes(call);
        if (unknown && first && vgpu_own_memory(call->process, call->here.device, &(uint64_t){0}))
            vgpu_store(&call->process->region.counters->header.device[call->here.device].context,
                       (bytes + 1) | (vgpu_has_host_number(call->process) ? VGPU_HOST_NUMBERS : 0));
    }
    call->here.ctx = context;
    bool ok = call->result == CU_OK;
    bool kept = vgpu_commit(call, vgpu_key(VGPU_CONTEXT, (uintptr_t)context), bytes);
    if (ok && !kept)
        atomic_fetch_sub(&call->process->contexts.count[call->here.device], 1);
    end_alone(call, call->here.device);
    return kept || !ok;
}
