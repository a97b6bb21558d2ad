// SPDX-License-Identifier: Apache-2.0
//
// Descriptors that memory was exported to: marked at the export, so that every
// process of the container can tell whether one of them is open, and which memory
// one that it was given is of.

#ifndef VGPU_IPC_FD_H
#define VGPU_IPC_FD_H

#include "runtime/base.h"
#include "vgpu_layout.h"

// The file that a descriptor is of, as a bit of the set that a record has. None where
// it can't be opened again, or the container has VGPU_FILES others.
uint64_t vgpu_fd_file(struct vgpu_counters *counters, int fd);

// Locks the descriptor's byte for this id. False where that can't be done, or seen.
bool vgpu_fd_lock(const struct vgpu_counters *counters, int fd, uint64_t files, uint64_t id);

// A look at any number of records: each file is opened once, when it is needed.
struct vgpu_fd_scan {
    const struct vgpu_counters *counters;
    int fd[VGPU_FILES]; // -1 where it isn't needed yet
    int cancel;         // whether the thread may be cancelled afterwards
};
void vgpu_fd_scan_begin(struct vgpu_fd_scan *scan, const struct vgpu_counters *counters);
void vgpu_fd_scan_end(struct vgpu_fd_scan *scan);

// Reports whether a descriptor of this id is open; true where that is unknown.
bool vgpu_fd_is_open(struct vgpu_fd_scan *scan, uint64_t files, uint64_t id);

// The bytes that a descriptor has locked among those of ids: their number, at most n.
int vgpu_fd_bytes(int fd, uint64_t *bytes, int n);
uint64_t vgpu_fd_byte(uint64_t id);

#endif
