// SPDX-License-Identifier: Apache-2.0
//
// Records of allocations that processes of the container share.
//
// Invariants:
//   1. An allocation is charged once: to its owner while that lives and hasn't
//      freed it; from then on its bytes stay in the device's total, in nobody's
//      slot, for as long as an importer lives or a descriptor is open (audit.c adds
//      them up).
//   2. A process becomes an importer only while the owner lives and holds: it
//      writes itself down first and then looks at the owner; an owner that frees
//      withdraws first and then looks for importers. One sees the other. Or while it
//      has a descriptor, whose lock keeps the record what it is (ipc_fd.c).
//   3. That a descriptor may be open is written down before it can be. That none is
//      any more (VGPU_CLOSED) is found out once the owner has gone or withdrawn, and
//      is so for good. An importer by a descriptor was written down before
//      that: importers are looked for after it.
//   4. A record is taken, by exchanging its owner, when neither that nor any importer
//      lives, and no descriptor is open. No owner's word comes back once it is
//      withdrawn: it leaves the record's id, so an exchange by a process that looked before
//      fails: the record has changed. A record is its taker's from the exchange
//      on, and an import's goal only once it is filled in. A process that dies
//      anywhere here leaves one to be taken.
//   5. Holders are named by slot and generation: what a dead process wrote down
//      means nobody.

#include "memory/ipc_share.h"

#include "memory/ipc_fd.h"

#include <fcntl.h>
#include <unistd.h>

#define MARKS 64 // signals that a descriptor can be given
#define LOCKS 8  // of ours on one descriptor

static uint64_t look(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
static void put(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

static bool exchange(uint64_t *word, uint64_t old, uint64_t new) {
    return __atomic_compare_exchange_n(word, &old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

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

static int device_of(uint64_t what) { return (int)(what >> 48 & 0xf); }
static uint64_t files_of(uint64_t what) { return what >> 52 & ((1 << VGPU_FILES) - 1); }

static bool is_imported(const struct vgpu_counters *counters, const struct vgpu_export *record) {
    for (int i = 0; i < VGPU_IMPORTERS; i++)
        if (lives(counters, look(&record->importer[i])))
            return true;
    VGPU_TEST_STEP();
    return false;
}

static uint32_t records(const struct vgpu_counters *counters) {
    uint32_t used = __atomic_load_n(&counters->header.exports_used, __ATOMIC_ACQUIRE);
    return used < VGPU_EXPORTS ? used : VGPU_EXPORTS;
}

// Of a record whose owner, as it was read before, is nobody.
static bool may_be_open(uint64_t owner, uint64_t what) {
    return files_of(what) != 0 && (owner & (VGPU_TAKEN | VGPU_CLOSED)) == 0;
}

uint64_t vgpu_unowned_bytes(const struct vgpu_counters *counters, int device, bool doubtful) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < records(counters); i++) {
        const struct vgpu_export *record = &counters->exported[i];
        uint64_t owner = look(&record->owner), what = look(&record->what);
        if (look(&record->id) == 0 || device_of(what) != device || lives(counters, owner))
            continue;
        if ((doubtful ? may_be_open(owner, what) : (owner & VGPU_KEPT) != 0) || is_imported(counters, record))
            sum += what & VGPU_BYTES_MASK;
    }
    return sum;
}

static uint64_t nobody(const struct vgpu_export *record) { return look(&record->id) & VGPU_BYTES_MASK; }

uint64_t vgpu_share_id(const void *handle, size_t bytes) {
    return vgpu_hash(VGPU_HASH_START, handle, bytes) | 1;
}

bool vgpu_share_look(struct vgpu_process *process) {
    struct vgpu_counters *counters = process->region.counters;
    struct vgpu_fd_scan scan;
    bool closed = false, kept = false;
    atomic_store(&process->sharing.left, false);
    vgpu_fd_scan_begin(&scan, counters);
    for (uint32_t i = 0; i < records(counters); i++) {
        struct vgpu_export *record = &counters->exported[i];
        uint64_t owner = look(&record->owner), what = look(&record->what);
        if (!may_be_open(owner, what) || lives(counters, owner))
            continue;
        VGPU_TEST_STEP();
        bool open = vgpu_fd_is_open(&scan, files_of(what), look(&record->id));
        uint64_t found = nobody(record) | (open ? VGPU_KEPT : VGPU_CLOSED);
        VGPU_TEST_STEP();
        closed |= (owner == found || exchange(&record->owner, owner, found)) && !open;
        kept |= open;
    }
    vgpu_fd_scan_end(&scan);
    if (kept)
        atomic_store(&process->sharing.left, true);
    return closed;
}

// Takes a record that nobody uses.
static int take_once(struct vgpu_process *process) {
    struct vgpu_counters *counters = process->region.counters;
    for (uint32_t i = 0; i < VGPU_EXPORTS; i++) {
        struct vgpu_export *record = &counters->exported[i];
        uint64_t owner = look(&record->owner);
        if (lives(counters, owner & ~VGPU_TAKEN) || may_be_open(owner, look(&record->what)) ||
            is_imported(counters, record))
            continue;
        VGPU_TEST_STEP();
        if (!exchange(&record->owner, owner, myself(process) | VGPU_TAKEN))
            continue;
        uint32_t *used = &counters->header.exports_used;
        uint32_t seen = __atomic_load_n(used, __ATOMIC_ACQUIRE);
        while (seen <= i && !__atomic_compare_exchange_n(used, &seen, i + 1, true,
                                                         __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            ;
        return (int)i;
    }
    return -1;
}

static int take(struct vgpu_process *process) {
    int index = take_once(process);
    if (index < 0 && vgpu_share_look(process))
        index = take_once(process);
    if (index >= 0)
        return index;
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

// Before the owner withdraws, not to keep audits waiting: a descriptor that is closed
// by then stays so.
static bool is_open(const struct vgpu_counters *counters, const struct vgpu_export *record) {
    struct vgpu_fd_scan scan;
    vgpu_fd_scan_begin(&scan, counters);
    bool open = vgpu_fd_is_open(&scan, files_of(look(&record->what)), look(&record->id));
    vgpu_fd_scan_end(&scan);
    return open;
}

void vgpu_share_end(struct vgpu_process *process, int index, bool pooled) {
    struct vgpu_counters *counters = process->region.counters;
    struct vgpu_export *record = &counters->exported[index];
    uint64_t what = look(&record->what), bytes = what & VGPU_BYTES_MASK;
    if (pooled) {
        put(&record->what, what - bytes); // nothing to leave to anybody
        put(&record->owner, nobody(record));
        return;
    }
    bool open = is_open(counters, record);
    vgpu_hand_over_begin(process, device_of(what));
    VGPU_TEST_STEP();
    put(&record->owner, nobody(record) | (open ? VGPU_KEPT : VGPU_CLOSED));
    VGPU_TEST_STEP();
    bool stays = open || is_imported(counters, record);
    vgpu_hand_over_end(process, device_of(what), bytes, stays);
    if (open)
        atomic_store(&process->sharing.left, true);
}

// A descriptor whose lock can't be seen carries its owner's PID instead, as the kernel
// translates it for each reader while that process lives, and one of 64 signals: what
// belongs to the open file goes with it to each process that it is sent to. No
// signal is ever sent.
void vgpu_share_mark(struct vgpu_process *process, int index, int fd) {
    struct vgpu_counters *counters = process->region.counters;
    if (index < 0)
        return;
    struct vgpu_export *record = &counters->exported[index];
    fcntl(fd, F_SETOWN, getpid());
    fcntl(fd, F_SETSIG, 1 + index % MARKS);
    uint64_t files = vgpu_fd_file(counters, fd);
    put(&record->what, look(&record->what) | files << 52);
    VGPU_TEST_STEP();
    vgpu_fd_lock(counters, fd, files, look(&record->id));
}

// Under sharing.lock. Writes the process down as an importer, if it may be one; with a
// descriptor of the record it may.
static bool join(struct vgpu_process *process, struct vgpu_export *record, uint64_t id, bool has_descriptor) {
    struct vgpu_counters *counters = process->region.counters;
    uint64_t owner = look(&record->owner);
    for (int i = 0; i < VGPU_IMPORTERS; i++) {
        uint64_t *place = &record->importer[i], old = look(place);
        if (lives(counters, old) || !exchange(place, old, myself(process)))
            continue;
        VGPU_TEST_STEP();
        if (look(&record->id) == id && (has_descriptor || (look(&record->owner) == owner && lives(counters, owner))))
            return true;
        exchange(place, myself(process), 0);
        return false;
    }
    return false;
}

static int import_at(struct vgpu_process *process, uint32_t index, uint64_t id, bool has_descriptor) {
    struct vgpu_export *record = &process->region.counters->exported[index];
    vgpu_lock(&process->sharing.lock);
    // A record that this process imports already is nobody else's to take.
    bool good = look(&record->id) == id &&
                (process->sharing.imported[index] != 0 || join(process, record, id, has_descriptor));
    process->sharing.imported[index] += good;
    vgpu_unlock(&process->sharing.lock);
    return good ? (int)index : -1;
}

int vgpu_import_marked(struct vgpu_process *process, int fd, int *device, uint64_t *bytes) {
    struct vgpu_counters *counters = process->region.counters;
    uint64_t locked[LOCKS];
    int locks = vgpu_fd_bytes(fd, locked, LOCKS);
    int pid = fcntl(fd, F_GETOWN), mark = fcntl(fd, F_GETSIG) - 1;
    atomic_store(&process->sharing.imports, true);
    for (uint32_t i = 0; i < records(counters); i++) {
        uint64_t owner = look(&counters->exported[i].owner), id = look(&counters->exported[i].id);
        for (int lock = 0; lock < locks; lock++)
            if (id != 0 && (owner & VGPU_TAKEN) == 0 && locked[lock] == vgpu_fd_byte(id)) {
                uint64_t what = look(&counters->exported[i].what);
                int index = import_at(process, i, id, true);
                *device = device_of(what);
                *bytes = index < 0 ? what & VGPU_BYTES_MASK : 0;
                return index;
            }
    }
    for (uint32_t i = 0; locks == 0 && i < records(counters); i++) {
        uint64_t owner = look(&counters->exported[i].owner), id = look(&counters->exported[i].id);
        if ((int)(i % MARKS) == mark && pid > 0 && id != 0 && lives(counters, owner) &&
            counters->slot[(owner >> 48) - 1].pid == pid)
            return import_at(process, i, id, false);
    }
    return -1;
}

int vgpu_import(struct vgpu_process *process, uint64_t id) {
    struct vgpu_counters *counters = process->region.counters;
    atomic_store(&process->sharing.imports, true);
    for (uint32_t i = 0; i < records(counters); i++)
        if (look(&counters->exported[i].id) == id && import_at(process, i, id, false) >= 0)
            return (int)i;
    return -1;
}

void vgpu_import_end(struct vgpu_process *process, int index) {
    struct vgpu_export *record = &process->region.counters->exported[index];
    vgpu_lock(&process->sharing.lock);
    if (process->sharing.imported[index] != 0 && --process->sharing.imported[index] == 0)
        for (int i = 0; i < VGPU_IMPORTERS; i++)
            exchange(&record->importer[i], myself(process), 0);
    vgpu_unlock(&process->sharing.lock);
}
