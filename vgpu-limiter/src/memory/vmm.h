// SPDX-License-Identifier: Apache-2.0
//
// What the files about memory made by cuMemCreate share. All of it under vmm.lock.

#ifndef VGPU_VMM_H
#define VGPU_VMM_H

#include "memory/memory.h"

struct vgpu_record {
    uint64_t bytes;
    int device; // -1: memory that is not charged here, such as the host's
    unsigned handles, mappings; // whatever else keeps it counts as a mapping
    int shared;   // its record (ipc_share.c), -1 for none
    int borrowed; // the record of another process, -1 for none
    LIST_HEAD(, vgpu_binding) bindings; // of an object: for multicast (vmm_bind.c), or an array (mem_sparse.c)
    struct vgpu_record *next; // of the arrays that have gone with a context
    bool abroad;  // an object that others may have: it doesn't end with us
    bool foreign; // from outside the container: its size is known by its mappings
};

// Memory that an object keeps.
struct vgpu_binding {
    uint64_t id;
    struct vgpu_record *of, *object; // NULL: an object that isn't known, or has gone
    LIST_ENTRY(vgpu_binding) link; // among its object's
};

struct vgpu_mapping {
    cu_ptr ptr;
    uint64_t bytes;
    struct vgpu_record *record;
    LIST_ENTRY(vgpu_mapping) link;
};

// What a handle means; NULL for memory that the library doesn't know.
struct vgpu_record *vgpu_record_of(struct vgpu_process *process, cu_handle handle);

// Remembers what an id of this class refers to. False if there is no memory.
bool vgpu_record_refer(struct vgpu_process *process, enum vgpu_class class, uint64_t id, void *to);

// The mapping around an address, NULL if there is none.
struct vgpu_mapping *vgpu_mapping_around(const struct vgpu_process *process, cu_ptr ptr);

// Charges for memory from outside the container as far as it is mapped. False if that
// doesn't fit.
bool vgpu_record_reach(struct vgpu_process *process, struct vgpu_record *record, uint64_t offset,
                       uint64_t bytes);

// Remembers under the id that the object keeps the memory, which counts as mapped already.
// Without memory to remember it, that stays charged until the process ends.
void vgpu_bind(struct vgpu_process *process, struct vgpu_record *record, struct vgpu_record *object, uint64_t id);

// Ends a binding that is in the table no more.
void vgpu_unbind(struct vgpu_process *process, struct vgpu_binding *binding);

// Uncharges what was mapped under arrays that have gone: a list of the objects to which
// their entries of VGPU_SPARSE led (mem_sparse.c).
void vgpu_sparse_end(struct vgpu_process *process, struct vgpu_record *arrays);

// Ends memory that neither a handle nor a mapping refers to any more.
void vgpu_record_drop(struct vgpu_process *process, struct vgpu_record *record);

#endif
