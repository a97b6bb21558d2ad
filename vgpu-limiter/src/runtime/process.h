// SPDX-License-Identifier: Apache-2.0
//
// The process as the limiter knows it: attached to its limits and counters or
// not, and which device a call is about.

#ifndef VGPU_PROCESS_H
#define VGPU_PROCESS_H

#include "runtime/driver.h"
#include "runtime/limits.h"
#include "runtime/region.h"
#include "runtime/table.h"

#include <sys/queue.h>

#define VGPU_ORDINALS 64 // CUDA devices that a process can see
#define VGPU_POOLS 64    // memory pools of a process
#define VGPU_ASKED 256

// What a pool is charged: see mem_pool.c.
struct vgpu_pool {
    cu_pool handle;
    int device;
    bool of_graphs;    // what graphs of this device have allocated: no pool of the driver
    bool is_default;   // the device's own, which is never destroyed
    uint64_t reserved; // as the driver said last
    uint64_t pending;  // charged for calls that are under way
};

struct vgpu_process {
    _Atomic bool attached; // everything below is set; false again in a child of fork
    _Atomic bool refused;  // attaching failed for good
    _Atomic bool damaged;  // see vgpu_is_damaged
    struct vgpu_lock lock; // held to attach
    unsigned first_epoch;  // when it was attached: handles of before are a parent's
    int device_count; // as CUDA counts them
    int8_t index[VGPU_ORDINALS]; // CUDA ordinal to index in limits, -1 for none
    int16_t ordinal[VGPU_MAX_DEVICES]; // the reverse, -1 for none
    struct vgpu_limits limits;
    struct vgpu_region region;
    const struct vgpu_pace *pace; // NULL where nobody says more than the limits
    struct { // words of the counters that only grow, as this process saw them last
        _Atomic uint64_t begun[VGPU_MAX_DEVICES], launches[VGPU_MAX_DEVICES];
    } seen;
    struct vgpu_table table; // pointers, arrays, handles and mappings, by class
    struct {
        bool measures; // launches on some device are limited, or may come to be
        const uint64_t *limited; // NULL, or 0, while none are: a word of the pace where there is no quota
        atomic_int captures; // stream captures under way in this process
        struct vgpu_lock end_lock; // held while one is ended
        struct vgpu_lock stream_lock; // held while streams' states are put into the table or taken out
    } launches;
    struct {
        _Atomic uint64_t last;
        struct vgpu_lock lock; // held by the thread that uses what it has seen:
        uint64_t seen_state[VGPU_SLOTS], seen_begun[VGPU_SLOTS]; // too much for a small stack
    } audit;
    _Atomic uint32_t waited_in_vain[VGPU_MAX_DEVICES]; // lent.c: at which changes of the total
    struct { // ipc_share.c
        struct vgpu_lock lock;
        struct vgpu_lock open_lock; // see mem_import.c
        uint32_t imported[VGPU_EXPORTS]; // how often this process has imported a record
        _Atomic bool imports; // it has imported memory
        _Atomic bool left; // a descriptor keeps memory that no process has
    } sharing;
    struct { // context.c
        struct vgpu_lock lock[VGPU_ORDINALS];
        struct vgpu_lock dying_lock; // held while the driver destroys a context
        _Atomic unsigned count[VGPU_MAX_DEVICES];
    } contexts;
    struct { // module.c
        struct vgpu_lock lock; // see overhead.h
        _Atomic unsigned unloads; // of modules and libraries
        _Atomic uint64_t asked[VGPU_ASKED]; // what has loaded what it needs
    } modules;
    struct { // own_memory.c
        struct vgpu_lock lock;
        unsigned tries;
        bool good;
        nv_device device[VGPU_MAX_DEVICES];
        struct nv_process_v2 *strangers[VGPU_MAX_DEVICES];
        unsigned stranger_count[VGPU_MAX_DEVICES];
        uint32_t pid; // this process's in NVML's lists, 0 if not known
        _Atomic bool managed; // it has allocated managed memory, which NVML may not count
    } nvml;
    struct { // vmm.c
        struct vgpu_lock lock;
        LIST_HEAD(, vgpu_mapping) mappings;
    } vmm;
    struct { // pool.c
        struct vgpu_lock lock;
        _Atomic uint32_t count;
        struct vgpu_pool pool[VGPU_POOLS];
    } pools;
    struct { // mem_graph.c
        _Atomic bool allocate; // a graph may allocate
        struct vgpu_lock lock;
    } graphs;
};

extern struct vgpu_process *_Atomic vgpu_process_page;

// The index in the limits of a CUDA device. The process has no share of one that
// isn't listed; then it returns -1 and logs it.
int vgpu_device_index(const struct vgpu_process *process, cu_device device);

// The container's total of a device as the counters have it.
static inline uint64_t vgpu_total(const struct vgpu_process *process, int device) {
    return vgpu_load(&process->region.counters->header.device[device].memory);
}

// The compute limit in force on a device in percent, 0 for none.
static inline uint32_t vgpu_core(const struct vgpu_process *process, int device) {
    return vgpu_core_limit(&process->limits, process->pace, device, vgpu_total(process, device));
}

// The compute quota on a device in percent, 0 for none or all of it.
static inline uint32_t vgpu_quota(const struct vgpu_process *process, int device) {
    uint32_t percent = vgpu_core(process, device);
    return percent < 100 ? percent : 0;
}

// Reports whether the counters are damaged: the slot isn't the one that the process claimed, or
// this process or the node side found figures that cannot be. Charges and limited launches are
// refused from then on, so overwriting the counters gains nothing.
static inline bool vgpu_is_damaged(const struct vgpu_process *process) {
    const struct vgpu_region *region = &process->region;
    return vgpu_unlikely(vgpu_load(&region->slot->state) != region->slot_state ||
                         atomic_load_explicit(&process->damaged, memory_order_relaxed) ||
                         (process->pace != NULL && vgpu_load(&process->pace->damaged) != 0));
}

// Marks the counters as damaged, for this process and in the file: new processes refuse CUDA,
// and the node agent reports it.
static inline void vgpu_damage(struct vgpu_process *process) {
    atomic_store(&process->damaged, true);
    vgpu_store(&process->region.counters->header.magic, 0);
}

// Adds to a word that only grows, of which `seen` is the value that the process saw last.
// Returns false if the word has gone back. `seen` is loaded before the addition: threads that
// store their values out of order raise no false alarm.
static inline bool vgpu_grow(uint64_t *word, _Atomic uint64_t *seen, uint64_t delta) {
    uint64_t before = atomic_load_explicit(seen, memory_order_acquire);
    uint64_t found = vgpu_add(word, delta);
    atomic_store_explicit(seen, found + delta, memory_order_release);
    return vgpu_likely(found >= before);
}

// The calling thread's context and the index of its device.
struct vgpu_here {
    cu_ctx ctx;
    int device;
};

// Fills *here. Returns CU_OK or the code for the caller: the driver's own where
// there is no context, CU_NOT_PERMITTED where the process has no share.
cu_result vgpu_here(const struct vgpu_process *process, struct vgpu_here *here);

// Around the library's own questions: while any thread captures in the global mode, a
// thread in that mode may ask about no event and wait for no stream; if it does, the
// capture is broken. A capture may begin at any time. Returns what to put back.
static inline int vgpu_capture_mode(int mode) {
    VGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

// Reports whether work for the stream is being captured into a graph, or that is unknown.
bool vgpu_is_capturing(const struct vgpu_process *process, bool per_thread, cu_stream stream);

// Waits for the stream, unless it is capturing.
void vgpu_stream_wait(const struct vgpu_process *process, bool per_thread, cu_stream stream);

// Changes when handles of contexts or streams may be used again for others.
extern atomic_uint vgpu_handle_epoch;
static inline unsigned vgpu_epoch(void) {
    return atomic_load_explicit(&vgpu_handle_epoch, memory_order_acquire);
}

// Makes every thread ask again which device a context or stream belongs to.
void vgpu_forget_contexts(void);

#endif
