// SPDX-License-Identifier: Apache-2.0
//
// A hash table in shards, each with its lock and its open-addressed array.
//
// Invariants:
//   1. A shard's array is at most half full, so a probe ends soon, however many
//      allocations live.
//   2. Every entry is reachable from its home without crossing an empty place:
//      removal moves later entries back, so there are no tombstones and the cost
//      doesn't depend on the past.
//   3. Memory comes from mmap, not malloc: the program's allocator may be what
//      called the driver.
//   4. An entry that is there can be replaced without memory.

#include "runtime/table.h"

#include <sys/mman.h>

#define FIRST_CAPACITY 128

static uint64_t hash(uint64_t key) { return (key ^ key >> 32) * UINT64_C(0x9e3779b97f4a7c15); }

static struct vgpu_shard *shard_of(struct vgpu_table *table, uint64_t key) {
    return &table->shard[hash(key) >> 58];
}

static uint64_t home(const struct vgpu_shard *shard, uint64_t key) {
    return hash(key) >> 20 & (shard->capacity - 1);
}

// The place of the key, or the empty place where it would go.
static uint64_t place(const struct vgpu_shard *shard, uint64_t key) {
    uint64_t i = home(shard, key);
    while (shard->entries[i].key != 0 && shard->entries[i].key != key)
        i = (i + 1) & (shard->capacity - 1);
    return i;
}

static bool grow(struct vgpu_shard *shard) {
    struct vgpu_shard bigger = {.capacity = shard->capacity != 0 ? shard->capacity * 2 : FIRST_CAPACITY};
    bigger.entries = mmap(NULL, bigger.capacity * sizeof *bigger.entries, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bigger.entries == MAP_FAILED)
        return false;
    for (uint64_t i = 0; i < shard->capacity; i++)
        if (shard->entries[i].key != 0)
            bigger.entries[place(&bigger, shard->entries[i].key)] = shard->entries[i];
    if (shard->entries != NULL)
        munmap(shard->entries, shard->capacity * sizeof *shard->entries);
    shard->entries = bigger.entries;
    shard->capacity = bigger.capacity;
    return true;
}

static void remove_at(struct vgpu_shard *shard, uint64_t hole) {
    uint64_t mask = shard->capacity - 1;
    for (uint64_t i = (hole + 1) & mask; shard->entries[i].key != 0; i = (i + 1) & mask) {
        uint64_t from_home = (i - home(shard, shard->entries[i].key)) & mask;
        if (from_home >= ((i - hole) & mask)) {
            shard->entries[hole] = shard->entries[i];
            hole = i;
        }
    }
    shard->entries[hole].key = 0;
    shard->count--;
}

static bool has(const struct vgpu_shard *shard, uint64_t key) {
    return shard->capacity != 0 && shard->entries[place(shard, key)].key == key;
}

bool vgpu_table_put(struct vgpu_table *table, const struct vgpu_entry *entry, struct vgpu_entry *old) {
    struct vgpu_shard *shard = shard_of(table, entry->key);
    vgpu_lock_hot(&shard->lock);
    bool fits = (shard->count + 1) * UINT64_C(2) <= shard->capacity || has(shard, entry->key) || grow(shard);
    if (fits) {
        uint64_t i = place(shard, entry->key);
        *old = shard->entries[i];
        shard->count += old->key == 0;
        shard->entries[i] = *entry;
    }
    vgpu_unlock_hot(&shard->lock);
    return fits;
}

static bool find(struct vgpu_table *table, uint64_t key, struct vgpu_entry *out, bool take) {
    struct vgpu_shard *shard = shard_of(table, key);
    bool found = false;
    if (key == 0)
        return false;
    vgpu_lock_hot(&shard->lock);
    if (shard->capacity != 0) {
        uint64_t i = place(shard, key);
        found = shard->entries[i].key == key;
        if (found) {
            *out = shard->entries[i];
            if (take)
                remove_at(shard, i);
        }
    }
    vgpu_unlock_hot(&shard->lock);
    return found;
}

bool vgpu_table_get(struct vgpu_table *table, uint64_t key, struct vgpu_entry *out) {
    return find(table, key, out, false);
}

bool vgpu_table_take(struct vgpu_table *table, uint64_t key, struct vgpu_entry *out) {
    return find(table, key, out, true);
}

void vgpu_table_visit(struct vgpu_table *table, const void *owner,
                      bool (*visit)(void *with, struct vgpu_entry *entry), void *with) {
    for (int s = 0; s < VGPU_TABLE_SHARDS; s++) {
        struct vgpu_shard *shard = &table->shard[s];
        vgpu_lock_hot(&shard->lock);
        for (uint64_t i = 0; i < shard->capacity;) {
            struct vgpu_entry *entry = &shard->entries[i];
            if (entry->key == 0 || entry->owner != owner || visit(with, entry))
                i++;
            else
                remove_at(shard, i); // another entry may take the place: look again
        }
        vgpu_unlock_hot(&shard->lock);
    }
}
