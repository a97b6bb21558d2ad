// SPDX-License-Identifier: Apache-2.0
//
// What the process has allocated: by pointer or handle, its size and owner.

#ifndef VGPU_TABLE_H
#define VGPU_TABLE_H

#include "runtime/base.h"

#define VGPU_TABLE_SHARDS 64

struct vgpu_entry {
    uint64_t key;   // not 0
    uint64_t value; // not read by the table
    void *owner;    // who loses it: a context, or NULL
};

struct vgpu_shard {
    struct vgpu_lock lock;
    uint32_t count;
    uint64_t capacity; // a power of two, or 0
    struct vgpu_entry *entries;
    uint8_t pad[32];
};

// A zeroed table is empty.
struct vgpu_table {
    _Alignas(64) struct vgpu_shard shard[VGPU_TABLE_SHARDS];
};

// Puts an entry. If the key is there already, the old entry is replaced and
// handed to *old; otherwise old->key is 0. Returns false, with nothing done, if
// there is no memory to hold it.
bool vgpu_table_put(struct vgpu_table *table, const struct vgpu_entry *entry, struct vgpu_entry *old);

// Reads or removes the entry of this key. Returns false if there is none.
bool vgpu_table_get(struct vgpu_table *table, uint64_t key, struct vgpu_entry *out);
bool vgpu_table_take(struct vgpu_table *table, uint64_t key, struct vgpu_entry *out);

// What the entry of this key points to, NULL if there is none.
static inline void *vgpu_table_find(struct vgpu_table *table, uint64_t key) {
    struct vgpu_entry entry;
    return vgpu_table_get(table, key, &entry) ? (void *)(uintptr_t)entry.value : NULL;
}

// Hands every entry of this owner to `visit`, which may change value and owner
// and returns whether the entry stays; it must not touch the table. Costs a scan
// of the table.
void vgpu_table_visit(struct vgpu_table *table, const void *owner,
                      bool (*visit)(void *with, struct vgpu_entry *entry), void *with);

#endif
