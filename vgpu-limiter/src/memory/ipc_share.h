// SPDX-License-Identifier: Apache-2.0
//
// Memory that processes share with each other.

#ifndef VGPU_IPC_SHARE_H
#define VGPU_IPC_SHARE_H

#include "memory/charge.h"

// What a handle that is passed as bytes is known by.
uint64_t vgpu_share_id(const void *handle, size_t bytes);

// Lets other processes of the container import an allocation of this one under
// the id; once for each allocation. Returns the index of the record, which the
// caller keeps until it frees the allocation, or -1 where all are taken: then importers are
// charged for it again.
int vgpu_share(struct vgpu_process *process, uint64_t id, int device, uint64_t bytes);

// Marks a descriptor of the allocation, so that an importer finds the record behind it
// and the bytes stay charged as long as it is open.
void vgpu_share_mark(struct vgpu_process *process, int index, int fd);

// Ends what vgpu_share began, when the allocation is freed: takes its charge back
// or, where other processes of the container still use it or a descriptor is open,
// leaves it to them.
// What is charged with its pool is only forgotten: importers have closed it by then.
void vgpu_share_end(struct vgpu_process *process, int index, bool pooled);

// Makes this process one of those who use the record of this id. Returns its
// index, or -1 if there is none that the container is charged for: then the import is
// charged to this process.
int vgpu_import(struct vgpu_process *process, uint64_t id);

// The same for the record behind a descriptor, which stays open until then. What the
// import is to be charged in full, where the record has too many importers, is in
// *device and *bytes.
int vgpu_import_marked(struct vgpu_process *process, int fd, int *device, uint64_t *bytes);

// Ends it, after the driver has closed the memory.
void vgpu_import_end(struct vgpu_process *process, int index);

// What records say is used by importers and descriptors alone; with what nobody has
// looked at since its owner died, or as views show it, without.
uint64_t vgpu_unowned_bytes(const struct vgpu_counters *counters, int device, bool doubtful);

// Looks at descriptors that may keep what nobody else has. Returns whether one of them
// was found to be closed: then an audit takes off what it kept.
bool vgpu_share_look(struct vgpu_process *process);

#endif
