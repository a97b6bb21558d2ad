// SPDX-License-Identifier: Apache-2.0
//
// What the mem_*.c files share: the pattern of every charged call.
//
//     struct vgpu_call call;
//     if (vgpu_begin(&call, bound) != CU_OK)     // attached, device, charge
//         return call.result;
//     call.result = VGPU_REAL(...)(...);
//     if (!vgpu_commit(&call, key, bytes)) undo;    // correct, remember
//     return call.result;

#ifndef VGPU_MEMORY_H
#define VGPU_MEMORY_H

#include "memory/attach.h"
#include "memory/audit.h"

struct vgpu_call {
    struct vgpu_process *process;
    struct vgpu_here here;
    uint64_t charged;
    cu_result result;
    bool alone; // only of one that creates a context: see overhead.c
    int cancel;
};

// Finds the process and the context's device, and charges the bytes, rounded up
// to VGPU_GRAIN: a million allocations of one byte take more than one MiB. Returns
// CU_OK or the code for the caller.
cu_result vgpu_begin(struct vgpu_call *call, uint64_t bytes);

// The same for a device that the call names.
cu_result vgpu_begin_on(struct vgpu_call *call, cu_device device, uint64_t bytes);

// Charges the bytes; where they don't fit, after everything of the process that is unused
// has been given back to the driver.
bool vgpu_charge_after_all(struct vgpu_process *process, int device, uint64_t bytes);
static inline bool vgpu_charge_or_trim(struct vgpu_process *process, int device, uint64_t bytes) {
    return vgpu_likely(vgpu_try_charge(process, device, bytes)) || vgpu_charge_after_all(process, device, bytes);
}

// Charges more before the driver is called, up to `bytes` in all. Returns as
// vgpu_begin; if it doesn't fit, nothing of the call is charged any more.
cu_result vgpu_raise(struct vgpu_call *call, uint64_t bytes);

// Ends a call that the driver has answered with call->result. If that is an
// error, the charge is taken back. Otherwise it is corrected to `bytes` and
// remembered under the key. Returns false if neither was possible: the charge is
// taken back, call->result is CU_OUT_OF_MEMORY, and the caller must give the
// memory back to the driver.
bool vgpu_commit(struct vgpu_call *call, uint64_t key, uint64_t bytes);

// Forgets and uncharges what is kept under the key around a call that frees it:
//     vgpu_release_begin; result = VGPU_REAL(...)(...); vgpu_release_end
// What is not known is none of our business: the driver's answer stands. The
// entry is taken out before the call, since another thread may be given the same
// address as soon as the driver has freed it, and put back if the call fails.
struct vgpu_release {
    struct vgpu_process *process; // NULL if nothing is kept under the key
    struct vgpu_entry entry;
};
void vgpu_release_begin(struct vgpu_release *release, uint64_t key);
void vgpu_release_end(struct vgpu_release *release, cu_result result);

// Keys of the table: device pointers as they are, other handles by class.
enum vgpu_class {
    VGPU_POINTER,
    VGPU_ARRAY,
    VGPU_MIPMAP,
    VGPU_HANDLE,
    VGPU_MAPPING,
    VGPU_STREAM, // see stream_state.c
    VGPU_EXEC,   // see mem_graph.c
    VGPU_CONTEXT, // what contexts and modules take: see overhead.h
    VGPU_MODULE,
    VGPU_IMPORT, // see ipc_share.h
    VGPU_OPENED, // how often more than once: see mem_import.c
    VGPU_EXTERNAL,
    VGPU_BOUND, // see vmm.h
    VGPU_SPARSE, // see mem_sparse.c
    VGPU_PART, // a library's module, which leads to it: nothing of its own (module.c)
};

static inline uint64_t vgpu_key(enum vgpu_class class, uint64_t id) {
    return id == 0 ? 0 : id ^ (uint64_t)class << 60;
}

static inline enum vgpu_class vgpu_class_of(uint64_t key) { return (enum vgpu_class)(key >> 60); }

// With it set, an entry's owner is a context that is being destroyed (context.c).
#define VGPU_DYING ((uintptr_t)1)

// Bytes and device of an entry, in its value, but for these:
#define VGPU_POOLED (UINT64_C(1) << 63)   // charged with its pool, not apart
#define VGPU_SHARED (UINT64_C(1) << 62)   // there is a record of it (ipc_share.c): bits 52..60
#define VGPU_BORROWED (UINT64_C(1) << 61) // charged to another process: index of the record

static inline uint64_t vgpu_value(uint64_t bytes, int device) {
    return bytes | (uint64_t)device << 48;
}
static inline uint64_t vgpu_value_bytes(uint64_t value) { return value & VGPU_BYTES_MASK; }
static inline int vgpu_value_device(uint64_t value) { return (int)(value >> 48 & 0xf); }
static inline uint64_t vgpu_value_shared(int record) { return VGPU_SHARED | (uint64_t)record << 52; }
static inline int vgpu_value_record(uint64_t value) { return (int)(value >> 52 & 0x1ff); }
_Static_assert(VGPU_MAX_DEVICES <= 16 && VGPU_EXPORTS <= 512, "an entry's value");

// Takes back the charge of an entry that has been taken out.
void vgpu_uncharge_special(struct vgpu_process *process, const struct vgpu_entry *entry);
static inline void vgpu_uncharge_entry(struct vgpu_process *process, const struct vgpu_entry *entry) {
    if (vgpu_likely(entry->value >> 61 == 0))
        vgpu_uncharge(process, (int)(entry->value >> 48), vgpu_value_bytes(entry->value));
    else
        vgpu_uncharge_special(process, entry);
}

// Remembers an entry whose charge is settled; false if there is no memory.
bool vgpu_remember(struct vgpu_process *process, const struct vgpu_entry *entry);

// What a driver takes for an allocation: it aligns addresses and rows to this.
#define VGPU_GRAIN UINT64_C(512)

static inline uint64_t vgpu_round(uint64_t bytes) {
    return bytes > UINT64_MAX - VGPU_GRAIN ? UINT64_MAX : (bytes + VGPU_GRAIN - 1) & -VGPU_GRAIN;
}

// a × b, or more than any device has.
static inline uint64_t vgpu_times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

#endif
