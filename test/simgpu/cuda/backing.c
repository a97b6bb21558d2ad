// SPDX-License-Identifier: Apache-2.0
//
// backing.c: the contents of device memory.
//
// Invariants:
// - A process's device memory has real pages behind at most BUDGET bytes, which
//   are put there as copies and fills first write; what is written beyond is
//   forgotten and reads as zero. Sizes and errors do not depend on it.
// - Managed memory is the exception: the host may touch it at any time, so it
//   is readable and writable from the start (the host pays when it does).
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>
#include <sys/mman.h>

#define BUDGET (64u << 20)
#define PAGE 4096u

static _Atomic size_t spent;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

// A bit per page would be exact; a block's prefix is enough and much smaller:
// pages [at, at + backed) are real.
static bool reach(struct block *b, size_t length) {
    size_t want = (length + PAGE - 1) & ~(size_t)(PAGE - 1);
    bool ok = true;
    if (want > b->span) want = b->span & ~(size_t)(PAGE - 1);
    pthread_mutex_lock(&mutex);
    if (want > b->backed) {
        size_t more = want - b->backed;
        ok = atomic_load(&spent) + more <= BUDGET && b->at % PAGE == 0 &&
             mprotect((void *)(uintptr_t)(b->at + b->backed), more, PROT_READ | PROT_WRITE) == 0;
        if (ok) {
            b->backed = want;
            atomic_fetch_add(&spent, more);
        }
    }
    pthread_mutex_unlock(&mutex);
    return ok && length <= b->backed;
}

// within finds the block around at and cuts *n to what of it lies in the block.
static struct block *within(CUdeviceptr at, size_t *n) {
    va_lock();
    struct block *b = va_around(at);
    va_unlock();
    size_t left = b ? (size_t)(b->at + b->size - at) : *n;
    if (left < *n) *n = left;
    return b;
}

// backing_write and backing_read take ranges that copy.c has checked: mapped
// all along, though perhaps by several mappings side by side.
void backing_write(CUdeviceptr to, const void *from, size_t n) {
    for (size_t at = 0, part; at < n; at += part) {
        part = n - at;
        struct block *b = within(to + at, &part);
        if (b && (b->kind == BLOCK_MANAGED || reach(b, (size_t)(to + at - b->at) + part)))
            memcpy((void *)(uintptr_t)(to + at), (const char *)from + at, part);
    }
}

void backing_read(void *to, CUdeviceptr from, size_t n) {
    for (size_t at = 0, part; at < n; at += part) {
        part = n - at;
        struct block *b = within(from + at, &part);
        size_t real = 0, offset = b ? (size_t)(from + at - b->at) : 0;
        if (b && b->kind == BLOCK_MANAGED)
            real = part;
        else if (b && b->backed > offset)
            real = b->backed - offset < part ? b->backed - offset : part;
        if (real) memcpy((char *)to + at, (const void *)(uintptr_t)(from + at), real);
        memset((char *)to + at + real, 0, part - real);
    }
}

// backing_drop takes the pages away; the block's next owner reads zeros.
void backing_drop(struct block *b) {
    size_t real = b->kind == BLOCK_MANAGED ? (b->size + PAGE - 1) & ~(size_t)(PAGE - 1) : b->backed;
    if (!real) return;
    void *at = (void *)(uintptr_t)b->at;
    madvise(at, real, MADV_DONTNEED);
    mprotect(at, real, PROT_NONE);
    if (b->kind != BLOCK_MANAGED) atomic_fetch_sub(&spent, b->backed);
    b->backed = 0;
}
