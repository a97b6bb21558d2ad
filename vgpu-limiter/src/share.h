// SPDX-License-Identifier: Apache-2.0
//
// Memory that processes share with each other.

#ifndef VGPU_SHARE_H
#define VGPU_SHARE_H

#include "memory.h"

// What a handle that is passed as bytes is known by.
uint64_t vgpu_share_id(const void *handle, size_t bytes);

// Lets other processes of the container import an allocation of this one under
// the id; once for each allocation. Returns the index of the record, which whoever
// frees the allocation has to know, or -1 where all are taken: then importers are
// charged for it again.
int vgpu_share(struct vgpu_process *process, uint64_t id, int device, uint64_t bytes);

// Marks a descriptor so that an importer finds the record behind it, and finds
// it. -1 if it isn't an allocation of a living process of the container.
void vgpu_share_mark(int index, int fd);
int vgpu_share_marked(struct vgpu_process *process, int fd, uint64_t *id);

// Ends what vgpu_share began, when the allocation is freed: takes its charge back
// or, where other processes of the container still use it, leaves it to them.
// What is charged with its pool is only forgotten: importers have to let go first.
void vgpu_share_end(struct vgpu_process *process, int index, bool pooled);

// Makes this process one of those who use the record of this id. Returns its
// index, or -1 if there is none that a living process of the container is charged
// for: then the import is charged to this process.
int vgpu_import(struct vgpu_process *process, uint64_t id);
int vgpu_import_at(struct vgpu_process *process, int index, uint64_t id);

// Ends it, after the driver has let go.
void vgpu_import_end(struct vgpu_process *process, int index);

// What records say is used by importers alone. For the audit.
uint64_t vgpu_orphans(const struct vgpu_counters *counters, int device);

#endif
