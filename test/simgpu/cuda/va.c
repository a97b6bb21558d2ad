// SPDX-License-Identifier: Apache-2.0
//
// va.c: device addresses: one reserved range of this process's address space,
// cut into blocks.
//
// Invariants:
// - Every device pointer lies in the range, so none equals a host pointer of
//   the program, and touching one on the host faults (until backing.c puts
//   pages there, as for managed memory).
// - Taking, finding by exact address and giving back are O(1) in the number of
//   live blocks: spans come in size classes, each with its own free list, and
//   blocks are found by hash.
// - All functions but va_lock, va_wake, va_ready and va_contains want the lock held.
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <sys/mman.h>

#define SMALL 4096u  // a block has pages of its own, so that backing.c can fill it
#define LARGE (2u << 20)
#define CLASSES 256

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static CUdeviceptr base, top, end;
static struct block *unused[CLASSES];
static struct block **table;
static size_t slots, used;
static unsigned long long next_id = 1;

void va_lock(void) { pthread_mutex_lock(&mutex); }
void va_unlock(void) { pthread_mutex_unlock(&mutex); }
void va_wait(void) { pthread_cond_wait(&changed, &mutex); }
void va_wake(void) { pthread_cond_broadcast(&changed); }

bool va_ready(void) {
    for (size_t size = (size_t)1 << 42; !base && size >= (size_t)1 << 34; size >>= 1) {
        void *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) continue;
        base = top = ((CUdeviceptr)(uintptr_t)p + LARGE - 1) & ~(CUdeviceptr)(LARGE - 1);
        end = (CUdeviceptr)(uintptr_t)p + size;
    }
    return base != 0;
}

bool va_contains(CUdeviceptr at) { return at >= base && at < end; }

size_t va_round(size_t size) { return (size + 511) & ~(size_t)511; }

// class_of gives a span's size class, four to each power of two, and rounds the
// span up to the class's size.
static unsigned class_of(size_t *span) {
    unsigned log = 63 - (unsigned)__builtin_clzll(*span);
    size_t step = log > 2 ? (size_t)1 << (log - 2) : 1;
    *span = (*span + step - 1) & ~(step - 1);
    log = 63 - (unsigned)__builtin_clzll(*span);
    return log * 4 + (unsigned)(*span >> (log - 2) & 3);
}

unsigned long long va_id(void) { return next_id++; }

struct block *va_take(size_t size, size_t alignment) {
    size_t span = size < SMALL ? SMALL : size, natural = size >= LARGE / 2 ? LARGE : SMALL;
    if (span < alignment) span = alignment;
    span = (span + natural - 1) & ~(natural - 1);
    unsigned class = class_of(&span);
    struct block *b = alignment <= natural ? unused[class] : NULL;
    if (b) {
        unused[class] = b->next;
    } else {
        size_t align = alignment > natural ? alignment : natural;
        CUdeviceptr at = (top + align - 1) & ~(CUdeviceptr)(align - 1);
        if (at + span > end || !(b = calloc(1, sizeof *b))) return NULL;
        b->at = at;
        b->span = span;
        top = at + span;
    }
    b->size = size;
    b->backed = 0;
    b->pool = NULL;
    b->owner = NULL;
    b->ctx = NULL;
    b->id = va_id();
    b->hold = -1;
    return b;
}

void va_give(struct block *b) {
    size_t span = b->span;
    unsigned class = class_of(&span);
    b->next = unused[class];
    unused[class] = b;
}

static size_t slot_of(CUdeviceptr at) { return (size_t)((at >> 12) * 0x9e3779b97f4a7c15ull >> 20) & (slots - 1); }

static void grow(void) {
    struct block **old = table;
    size_t n = slots;
    slots = slots ? slots * 2 : 1024;
    table = calloc(slots, sizeof *table);
    if (!table) abort();  // the program is out of host memory
    for (size_t i = 0; i < n; i++) {
        if (!old[i]) continue;
        size_t s = slot_of(old[i]->at);
        while (table[s]) s = (s + 1) & (slots - 1);
        table[s] = old[i];
    }
    free(old);
}

void va_insert(struct block *b) {
    if (used * 2 >= slots) grow();
    size_t s = slot_of(b->at);
    while (table[s]) s = (s + 1) & (slots - 1);
    table[s] = b;
    used++;
}

struct block *va_find(CUdeviceptr at) {
    if (!slots) return NULL;
    for (size_t s = slot_of(at); table[s]; s = (s + 1) & (slots - 1))
        if (table[s]->at == at) return table[s];
    return NULL;
}

// va_around finds the block that at lies in, by looking at all of them when at
// is not a block's beginning; inside a reservation, what is mapped there.
struct block *va_around(CUdeviceptr at) {
    struct block *found = va_find(at);
    for (size_t i = 0; i < slots && !found; i++)
        if (table[i] && at >= table[i]->at && at < table[i]->at + table[i]->size) found = table[i];
    struct block *inside = found && found->kind == BLOCK_RESERVED ? vmm_around(at) : NULL;
    return inside ? inside : found;
}

void va_remove(struct block *b) {
    size_t hole = slot_of(b->at);
    while (table[hole] != b) hole = (hole + 1) & (slots - 1);
    table[hole] = NULL;
    used--;
    // Close the gap, so that a search can stop at the first empty slot.
    for (size_t s = (hole + 1) & (slots - 1); table[s]; s = (s + 1) & (slots - 1)) {
        size_t home = slot_of(table[s]->at);
        if (((s - home) & (slots - 1)) < ((s - hole) & (slots - 1))) continue;
        table[hole] = table[s];
        table[s] = NULL;
        hole = s;
    }
}

void va_each(void (*visit)(struct block *, void *), void *arg) {
    va_lock();
    for (size_t i = 0; i < slots; i++)
        if (table[i]) visit(table[i], arg);
    va_unlock();
}
