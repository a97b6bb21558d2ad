// SPDX-License-Identifier: Apache-2.0
//
// Records of allocations that processes of the container share.
//
// Invariants:
//   1. An allocation is charged once: to its owner while that lives and hasn't
//      freed it; from then on its bytes stay in the device's total, in nobody's
//      slot, for as long as an importer lives (charge.c adds them up).
//   2. A process becomes an importer only while the owner lives and holds: it
//      writes itself down first and then looks at the owner; an owner that frees
//      withdraws first and then looks for importers. One sees the other.
//   3. A record is taken, by exchanging its owner, when neither that nor any importer
//      lives. No owner's word comes back once it is withdrawn: it leaves the record's
//      id, so whoever looked before an exchange is told that the record has changed.
//      A record is its taker's from the exchange on, and an import's goal only once
//      it is filled in. A process that dies anywhere here leaves one to be taken.
//   4. Holders are named by slot and generation: what a dead process wrote down
//      means nobody.

#include "share.h"

#include <fcntl.h>
#include <unistd.h>

#define TAKEN (UINT64_C(1) << 63) // with an owner: the record isn't filled in yet
#define MARKS 64 // signals that a descriptor can be given

static uint64_t look(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
static void put(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

static uint64_t holder(uint64_t slot, uint64_t state) {
    return (slot + 1) << 48 | (state & VGPU_BYTES_MASK);
}

static uint64_t myself(const struct vgpu_process *process) {
    const struct vgpu_region *region = &process->region;
    return holder((uint64_t)(region->slot - region->counters->slot), region->slot_state);
}

static bool lives(const struct vgpu_counters *counters, uint64_t who) {
    uint64_t slot = (who >> 48) - 1;
    if (slot >= VGPU_SLOTS)
        return false;
    uint64_t state = look(&counters->slot[slot].state);
    return vgpu_slot_is_live(state) && holder(slot, state) == who;
}

static bool is_used(const struct vgpu_counters *counters, const struct vgpu_export *record) {
    for (int i = 0; i < VGPU_IMPORTERS; i++)
        if (lives(counters, look(&record->importer[i])))
            return true;
    return false;
}

static uint32_t records(const struct vgpu_counters *counters) {
    uint32_t used = __atomic_load_n(&counters->header.exports_used, __ATOMIC_ACQUIRE);
    return used < VGPU_EXPORTS ? used : VGPU_EXPORTS;
}

uint64_t vgpu_orphans(const struct vgpu_counters *counters, int device) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < records(counters); i++) {
        const struct vgpu_export *record = &counters->exported[i];
        uint64_t what = look(&record->what);
        if (look(&record->id) != 0 && (int)(what >> 48) == device &&
            !lives(counters, look(&record->owner)) && is_used(counters, record))
            sum += what & VGPU_BYTES_MASK;
    }
    return sum;
}

uint64_t vgpu_share_id(const void *handle, size_t bytes) {
    const unsigned char *at = handle;
    uint64_t hash = UINT64_C(0xcbf29ce484222325); // FNV-1a
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash | 1;
}

static bool exchange(uint64_t *word, uint64_t old, uint64_t new) {
    return __atomic_compare_exchange_n(word, &old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

// Takes a record that nobody uses.
static int take(struct vgpu_process *process) {
    struct vgpu_counters *counters = process->region.counters;
    for (uint32_t i = 0; i < VGPU_EXPORTS; i++) {
        struct vgpu_export *record = &counters->exported[i];
        uint64_t owner = look(&record->owner);
        if (lives(counters, owner & ~TAKEN) || is_used(counters, record))
            continue;
        VGPU_TEST_STEP();
        if (!exchange(&record->owner, owner, myself(process) | TAKEN))
            continue;
        uint32_t *used = &counters->header.exports_used;
        uint32_t seen = __atomic_load_n(used, __ATOMIC_ACQUIRE);
        while (seen <= i && !__atomic_compare_exchange_n(used, &seen, i + 1, true,
                                                         __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            ;
        return (int)i;
    }
    VGPU_LOG_ONCE("more than %d allocations shared between processes: further ones are charged to "
                  "each of them", VGPU_EXPORTS);
    return -1;
}

int vgpu_share(struct vgpu_process *process, uint64_t id, int device, uint64_t bytes) {
    int index = take(process);
    if (index < 0)
        return -1;
    struct vgpu_export *record = &process->region.counters->exported[index];
    VGPU_TEST_STEP();
    put(&record->id, id);
    put(&record->what, bytes | (uint64_t)device << 48);
    for (int i = 0; i < VGPU_IMPORTERS; i++)
        put(&record->importer[i], 0);
    VGPU_TEST_STEP();
    put(&record->owner, myself(process));
    return index;
}

void vgpu_share_end(struct vgpu_process *process, int index, bool pooled) {
    struct vgpu_counters *counters = process->region.counters;
    struct vgpu_export *record = &counters->exported[index];
    uint64_t what = look(&record->what);
    if (pooled) {
        put(&record->what, what & ~VGPU_BYTES_MASK); // nothing to leave to anybody
        put(&record->owner, look(&record->id) & VGPU_BYTES_MASK);
        return;
    }
    vgpu_hand_over_begin(process, (int)(what >> 48));
    VGPU_TEST_STEP();
    put(&record->owner, look(&record->id) & VGPU_BYTES_MASK);
    VGPU_TEST_STEP();
    bool used = is_used(counters, record);
    vgpu_hand_over_end(process, (int)(what >> 48), what & VGPU_BYTES_MASK, used);
}

// A descriptor carries its owner's PID, as the kernel translates it for each
// reader while that process lives, and one of 64 signals: what belongs to the
// open file goes with it to whoever it is sent to. Nothing is ever signalled.
void vgpu_share_mark(int index, int fd) {
    if (index < 0)
        return;
    fcntl(fd, F_SETOWN, getpid());
    fcntl(fd, F_SETSIG, 1 + index % MARKS);
}

int vgpu_share_marked(struct vgpu_process *process, int fd, uint64_t *id) {
    struct vgpu_counters *counters = process->region.counters;
    int pid = fcntl(fd, F_GETOWN), mark = fcntl(fd, F_GETSIG) - 1;
    for (int i = mark; pid > 0 && mark >= 0 && i < (int)records(counters); i += MARKS) {
        uint64_t owner = look(&counters->exported[i].owner);
        *id = look(&counters->exported[i].id);
        if (*id != 0 && lives(counters, owner) && counters->slot[(owner >> 48) - 1].pid == pid)
            return i;
    }
    return -1;
}

// Under share_lock. Writes the process down as an importer, if it may be one.
static bool join(struct vgpu_process *process, struct vgpu_export *record, uint64_t id) {
    struct vgpu_counters *counters = process->region.counters;
    uint64_t owner = look(&record->owner);
    for (int i = 0; i < VGPU_IMPORTERS; i++) {
        uint64_t *place = &record->importer[i], old = look(place);
        if (lives(counters, old) || !exchange(place, old, myself(process)))
            continue;
        VGPU_TEST_STEP();
        if (look(&record->id) == id && look(&record->owner) == owner && lives(counters, owner))
            return true;
        exchange(place, myself(process), 0);
        return false;
    }
    return false;
}

int vgpu_import_at(struct vgpu_process *process, int index, uint64_t id) {
    struct vgpu_export *record = &process->region.counters->exported[index];
    vgpu_lock(&process->share_lock);
    // A record that this process imports already is nobody else's to take.
    bool good = look(&record->id) == id && (process->imported[index] != 0 || join(process, record, id));
    process->imported[index] += good;
    vgpu_unlock(&process->share_lock);
    return good ? index : -1;
}

int vgpu_import(struct vgpu_process *process, uint64_t id) {
    struct vgpu_counters *counters = process->region.counters;
    atomic_store(&process->imports, true);
    for (uint32_t i = 0; i < records(counters); i++)
        if (look(&counters->exported[i].id) == id && vgpu_import_at(process, (int)i, id) >= 0)
            return (int)i;
    return -1;
}

void vgpu_import_end(struct vgpu_process *process, int index) {
    struct vgpu_export *record = &process->region.counters->exported[index];
    vgpu_lock(&process->share_lock);
    if (process->imported[index] != 0 && --process->imported[index] == 0)
        for (int i = 0; i < VGPU_IMPORTERS; i++)
            exchange(&record->importer[i], myself(process), 0);
    vgpu_unlock(&process->share_lock);
}
