// SPDX-License-Identifier: Apache-2.0
//
// The three files that a container's processes share with the node agent. This
// header is their only definition in C; vgpu-limiter/layout is its Go twin, and
// a test there compares every size and offset below.
//
//   limits    written once by the node agent, mounted read-only: what is allowed.
//   counters  created by the node agent, mounted read-write: what is in use.
//   pace      written by the node agent again and again, mounted read-only: how
//             device time is shared out just now. It may be missing.
//
// All are little-endian, fixed in size, and refused as a whole unless magic,
// version and size (and, for limits, the checksum) are right.
//
// Invariants of the counters:
//   1. A slot belongs to the process that holds the POSIX lock on the byte of
//      the file whose offset is the slot's index. Only the holder changes
//      `state`, `pid` and `start_time`. Slots never move.
//   2. `device.memory` is never less than the sum of what live slots hold. The
//      excess is what died with its owner, and any process may take it off
//      again (audit.c).
//   3. No word here is a lock: a process that dies anywhere blocks nobody.
//   4. memory_refusals, memory_peak, throttled_ns, launches, slots_used and a slot's begun
//      only grow. A process or node side that sees one go back marks the file as
//      damaged: an earlier copy was written back (process.h, pace/loop.go).

#ifndef VGPU_LAYOUT_H
#define VGPU_LAYOUT_H

#include <stdint.h>

#define VGPU_MAX_DEVICES 16     // devices of one container
#define VGPU_SLOTS 1024         // processes of one container that use CUDA at a time
#define VGPU_EXPORTS 512        // allocations of one container that are shared between its processes
#define VGPU_IMPORTERS 5        // processes that are known to use one of them
#define VGPU_FILES 4            // files that descriptors of such allocations are of
#define VGPU_SLOWDOWN_DEVICES 5 // devices of one container whose slowdown is known
#define VGPU_SLOWDOWN_MOST 10000u // percent
#define VGPU_CONTAINER_BYTES 128 // container identity, NUL-terminated
#define VGPU_UUID_BYTES 16

#define VGPU_LIMITS_MAGIC UINT64_C(0x314d494c55504756)   // "VGPULIM1"
#define VGPU_COUNTERS_MAGIC UINT64_C(0x314e544355504756) // "VGPUCTN1"
#define VGPU_PACE_MAGIC UINT64_C(0x3145434150504756)     // "VGPPACE1"
#define VGPU_LIMITS_VERSION 1u
#define VGPU_COUNTERS_VERSION 5u
#define VGPU_PACE_VERSION 4u

#define VGPU_MAY_BURST 1u // may use device time beyond the quota that nobody else wants
#define VGPU_IDLE 2u // an idle slice: it has no quota, and launches only while the node side gives it a turn

struct vgpu_limits_device {
    uint8_t uuid[VGPU_UUID_BYTES]; // as cuDeviceGetUuid returns it
    uint64_t memory_bytes;         // at least 1
    uint32_t core_percent;         // 1..100; 0 = no compute quota: it yields to those with one
    uint16_t flags;                // VGPU_MAY_BURST or VGPU_IDLE
    uint16_t burst_percent;        // 1..100: with VGPU_MAY_BURST no more than this; 0: all that is idle
};

struct vgpu_limits {
    uint64_t magic;
    uint32_t version;
    uint32_t size;     // of the whole file, bytes
    uint64_t checksum; // FNV-1a 64 of the whole file with this field zero
    uint32_t device_count;
    uint32_t reserved; // 0
    char container[VGPU_CONTAINER_BYTES];
    struct vgpu_limits_device device[VGPU_MAX_DEVICES]; // unused ones all zero
};

// Everything below is changed by atomic operations only, once it is shared.
// All words count up from zero; a new file is zero but for the header.

struct vgpu_counters_device {
    // Bytes charged to the container: bits 0..47. Bits 48..62 count the corrections that
    // took dead owners' bytes off, and the changes of the limits and of what is ready of them.
    // Bit 63 names which of the two limits of vgpu_pace_device is in force.
    uint64_t memory;
    uint64_t memory_refusals; // allocations refused for want of memory
    // What the first context of a process was seen to take, plus 1; bit 63: NVML
    // numbers the device's processes as the host does.
    uint64_t context;
    uint64_t memory_peak;     // most bytes charged at a time
    uint64_t returned_ns;     // of the pace's, what has been taken off
    uint64_t usual_ns;        // what launches take on average, each by the time that it takes
    // Most bytes charged at a refusal, together with those refused, up to 2^48 - 1. It only
    // grows. 0 before a refusal, and in a container of the release before.
    uint64_t needed;
    // What bytes charged are to become by a charge that waits for lent memory; 0 for none. A
    // process that was killed may have left it.
    uint64_t wanted;
    // CLOCK_MONOTONIC nanoseconds at which the container's device time is paid
    // off at its quota. Launches wait while it lies beyond the current refill
    // period (token_bucket.c).
    uint64_t paid_until;
    uint64_t busy_ns;      // device time charged
    uint64_t throttled_ns; // time that launches waited for the quota
    // Launches charged. Like busy_ns it counts only where there is a quota, and
    // is brought up to date every few hundred microseconds of device time.
    uint64_t launches;
    uint64_t last_launch; // CLOCK_MONOTONIC ns
    uint64_t longest_ns;  // about the longest launch of late
    uint64_t working_until; // when what was launched is through, as far as is known
    uint64_t waiting_since; // CLOCK_MONOTONIC ns: the launch that has waited longest; 0 for none
};

// A file that descriptors of exported memory are of, such as a device node, and how
// it is opened again (ipc_fd.c).
struct vgpu_file {
    uint64_t key;  // which file it is; 0 for none
    uint64_t good; // 1 once the path is filled in; neither changes any more
    char path[480];
};

struct vgpu_counters_header {
    uint64_t magic;
    uint32_t version;
    uint32_t size; // of the whole file, bytes
    uint32_t device_count; // same devices, same order as in limits
    uint32_t slot_count;   // VGPU_SLOTS
    uint32_t slots_used;   // slots at or above this index were never claimed
    uint32_t exports_used; // the same of exported
    uint64_t bell; // reserved, 0 today: a futex by which a launch may wake the node side
    uint64_t pad[3];
    struct vgpu_counters_device device[VGPU_MAX_DEVICES];
    struct vgpu_file file[VGPU_FILES];
};

// Charges and uncharges. All arithmetic is modulo 2^48.
struct vgpu_slot_device {
    uint64_t begun; // how many have begun
    uint64_t held;  // how many have ended, plus their bytes times 2^16
};

struct vgpu_slot {
    uint64_t state;      // generation * 2 + (1 when claimed)
    uint64_t start_time; // field 22 of /proc/PID/stat, 0 where unreadable
    int32_t pid;         // in the process's own PID namespace
    uint32_t reserved;
    // How much longer than at their best the process's launches take on each of the first
    // devices (slowdown.c); 0 where that isn't known:
    //   bits  0..15  percent, 100 or more: 150 where they take half as long again
    //   bits 16..31  the part of the time in which the device worked for the process, in 1/1000
    //   bits 32..63  CLOCK_MONOTONIC seconds at which it was written
    uint64_t slowdown[VGPU_SLOWDOWN_DEVICES];
    struct vgpu_slot_device device[VGPU_MAX_DEVICES];
    struct vgpu_slot_device lone[VGPU_MAX_DEVICES]; // reserved: the release before adds one thread's here
};

// An allocation that other processes of the container may import. It is charged
// to its owner while that lives and hasn't freed it, and belongs to its importers
// and to its open descriptors from then on (ipc_share.c). A holder is slot index + 1 in
// bits 48..60 and the low 48 bits of the slot's state; without an index it is nobody.
struct vgpu_export {
    uint64_t id;    // what its handles are known by, 0 in a free record
    uint64_t what;  // bytes in bits 0..47, index of the device in bits 48..51, in bits
                    // 52..55 of which files it has descriptors
    uint64_t owner; // or nobody, with one of these bits:
    uint64_t importer[VGPU_IMPORTERS];
};
#define VGPU_TAKEN (UINT64_C(1) << 63)  // with a holder: it fills the record in
#define VGPU_KEPT (UINT64_C(1) << 62)   // a descriptor was open when somebody looked
#define VGPU_CLOSED (UINT64_C(1) << 61) // no descriptor is, nor will be

// When the container has had work on the device of late: how much of each interval
// of VGPU_CELL_NS of CLOCK_MONOTONIC. By it, time in which several of its streams
// or processes worked counts once: intervals are shorter than most launches that work at
// the same time. A cell serves interval after interval: bits 16..31 are the low bits of
// which, in turns through the calendar, and bits 0..15 the time in units of 2 ns. The low
// bits come again after 4.9 hours: a cell that nothing was entered in since, but just then, is
// taken for one of now.
#define VGPU_CELLS 16384
#define VGPU_CELL_NS UINT64_C(16384)

struct vgpu_calendar {
    uint32_t cell[VGPU_CELLS];
};

struct vgpu_counters {
    struct vgpu_counters_header header;
    struct vgpu_slot slot[VGPU_SLOTS];
    struct vgpu_export exported[VGPU_EXPORTS];
    struct vgpu_calendar calendar[VGPU_MAX_DEVICES];
};

// How one device's time is shared out just now: one word, so that it is never
// read half written, and how long it holds. A word that makes no sense or is out
// of date counts as none: the container has its quota, no more and no less.
//   bits  0..6   percent of the device at which launches are paid for. Less than
//                the quota counts as the quota; more as well, without VGPU_MAY_BURST.
//                A container without a quota takes any.
//   bit   7      other containers work on the device too
//   bits  8..27  when the container's refill periods begin: us after a multiple
//   bits 28..47  of the period's length in us
//   bits 48..55  for how much of each period, from its beginning, the device is the
//                container's turn, in 1/255; 255: it may launch at any time
struct vgpu_pace_device {
    uint64_t turn;
    uint64_t valid_until; // CLOCK_MONOTONIC ns
    uint64_t returned_ns; // of what the container was ever charged, others' work: it is taken off again
    uint64_t others_until; // CLOCK_MONOTONIC ns: no launch before: what others have launched is to be through
    // Never out of date. The quota of a container whose limits have none, or all of the
    // device, in percent: of 100 - the neighbours' quotas, its part; 0 without neighbours.
    uint64_t plain_core;
    // Never out of date. Bit 63 of the counters' memory names the one of two limits that is in
    // force in place of the limits file's. It doesn't change while it is in force:
    //   bits  0..47  memory in bytes; 0: the limits file's
    //   bits 48..55  percent of the device, 1..100; 0: the limits file's
    uint64_t limit[2];
    // Never out of date. What of the limit in force is charged without a wait, the rest being
    // lent; 0: all. Lowered as limits are: only a counted change of the total that is within
    // it has put it in force.
    uint64_t ready_bytes;
};

struct vgpu_pace {
    uint64_t magic;
    uint32_t version;
    uint32_t size; // of the whole file, bytes
    uint32_t device_count; // same devices, same order as in limits
    // The library that was installed with this file reads, from 1 on, limit[2], and from 2 on
    // ready_bytes.
    uint32_t resizes;
    // Bit i: plain_core of device i isn't 0. Bit 16 + i: its limit in force has a quota, and
    // the limits file has none or all of the device.
    uint64_t plain_devices;
    uint64_t damaged; // 1: the node side has seen counters go back that only grow
    uint64_t ring_devices; // reserved, for idle slices: bit i: a launch is to ring the bell of the counters
    uint64_t pad[2];
    struct vgpu_pace_device device[VGPU_MAX_DEVICES];
};

#define VGPU_TURN_CORE(turn) ((uint32_t)((turn) & 0x7f))
#define VGPU_TURN_NEIGHBOURS(turn) (((turn) >> 7 & 1) != 0)
#define VGPU_TURN_PHASE_NS(turn) (((turn) >> 8 & 0xfffff) * UINT64_C(1000))
#define VGPU_TURN_PERIOD_NS(turn) (((turn) >> 28 & 0xfffff) * UINT64_C(1000))
#define VGPU_TURN_PART(turn) ((uint32_t)((turn) >> 48 & 0xff))
#define VGPU_PERIOD_MIN_NS UINT64_C(1000000)
#define VGPU_PERIOD_MAX_NS UINT64_C(1000000000)

#define VGPU_HOST_NUMBERS (UINT64_C(1) << 63)
#define VGPU_BYTES_MASK ((UINT64_C(1) << 48) - 1)
#define VGPU_HIGH_ONE (UINT64_C(1) << 48)
#define VGPU_SECOND_LIMIT (UINT64_C(1) << 63)
#define VGPU_LIMIT_CORE(limit) ((uint32_t)((limit) >> 48 & 0xff))

_Static_assert(sizeof(struct vgpu_limits) == 672, "limits file");
_Static_assert(sizeof(struct vgpu_counters_header) == 4096, "one page");
_Static_assert(sizeof(struct vgpu_counters_device) == 128, "two cache lines");
_Static_assert(sizeof(struct vgpu_pace) == 1088, "pace file");
_Static_assert(sizeof(struct vgpu_file) == 496, "four of them fill the page");
_Static_assert(sizeof(struct vgpu_slot) % 64 == 0, "slots share no cache line");
_Static_assert(sizeof(struct vgpu_export) == 64, "one cache line");

#endif
