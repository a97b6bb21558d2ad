// SPDX-License-Identifier: Apache-2.0
//
// state.h: the shared state file, which plays the kernel driver: one file per
// simulated machine, mapped by every process that uses NVML or CUDA there.
//
// Invariants:
// - Nothing in the file can be left locked by a dead process. Mutual exclusion
//   is by open-file-description locks on bytes of the file, which the kernel
//   drops with the process (lock.c).
// - A client slot belongs to the process that holds a POSIX record lock on the
//   slot's first byte. No lock means that the owner is dead and the slot, with
//   the memory and queued work accounted in it, may be reclaimed by anybody
//   who holds the state lock (clients.c).
// - Used memory is never stored as a total: it is the sum of what live slots
//   hold, so that it cannot drift (memory.c).
// - The layout is fixed by SIM_VERSION; a process never uses a file of another.
#ifndef VERNIER_SIMGPU_STATE_H
#define VERNIER_SIMGPU_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAGIC 0x55504753524e5256ull  // "VRNSGPU" read backwards
#define SIM_VERSION 7u

#define SIM_MAX_DEVICES 16
#define SIM_MAX_CLIENTS 128
#define SIM_MAX_LIMITS 128
#define SIM_MAX_INSTANCES 16  // GPU instance ids of a device are 0..15
#define SIM_MAX_EVENTS 256
#define SIM_MAX_HOLDS 256
#define SIM_MAX_CGROUP_DEPTH 16
#define SIM_HISTORY 1024
#define SIM_TURNS 4096
#define SIM_WHOLE_GPU 0xffffffffu  // instance id of work outside MIG
#define SIM_MAX_SWITCHES 16
#define SIM_PCIE_DEPTH 4         // host bridge and switches above a device
#define SIM_GPM 64                 // GPM metrics that can be set have a lower number
#define SIM_RATE 1000000u          // a whole device's time, in which ceilings count

// Busy time is kept in buckets on a fixed grid of CLOCK_MONOTONIC, so that a
// late reader cannot stretch a window.
#define SIM_BUCKET_NS 100000000ull
#define SIM_BUCKETS 16

#define SIM_MIB (UINT64_C(1) << 20)

struct sim_model;

// One compute instance, inside its GPU instance.
struct sim_ci {
    uint32_t used, profile, start, slices;
    uint8_t uuid[16];
};

struct sim_gi {
    uint32_t used, profile, start, size;
    struct sim_ci ci[8];
};

struct sim_buckets {
    uint64_t first[SIM_BUCKETS];  // which grid interval the entry counts
    uint64_t busy_ns[SIM_BUCKETS];
};

// A client's turn on a device that does one piece of work after the other.
struct sim_turn {
    uint32_t client;
    uint64_t position;
};

// Faults planted in the MPS control daemon of a device (mps.c).
enum sim_plant { SIM_REFUSE, SIM_IGNORE, SIM_SLOW, SIM_HANG, SIM_NO_START, SIM_PLANTS };

// What a device is beside (nvml/topology.c, links.c).
struct sim_place {
    uint32_t numa_node;
    uint32_t pcie[SIM_PCIE_DEPTH], pcie_depth;  // from the host bridge down; 0: one of its own
    uint32_t switches;        // NVSwitches that its NVLinks lead to
    uint32_t bridged;         // devices that its NVLinks lead to, one bit each
    uint32_t fabric, clique;  // whether it is of a fabric, and of which part
    uint8_t cluster[16];
};

struct sim_device {
    char model[32];
    uint8_t uuid[16];
    uint32_t minor, domain, bus;
    struct sim_place place;
    _Atomic uint32_t links_down;
    uint64_t total_bytes, reserved_bytes, context_bytes;
    uint64_t mps_context_bytes;  // of a client of the multi-process service
    _Atomic uint32_t lost, persistence, compute_mode;
    _Atomic uint32_t mig_current, mig_pending, mig_generation;
    struct sim_gi gi[SIM_MAX_INSTANCES];
    _Atomic uint64_t ecc_corrected, ecc_uncorrected;
    _Atomic uint64_t advanced_ns;  // the timeline has been worked out up to here
    _Atomic uint64_t busy_ns;      // since the file was made, over all instances
    struct sim_buckets buckets;
    _Atomic uint32_t stretch;  // percent that work takes longer, as beside others that use DRAM
    _Atomic uint32_t gpm[SIM_GPM];  // what NVML's GPM says, in 1/1000, by its number (nvml/gpm.c)
    uint32_t serial;  // see serial.c; otherwise time is divided equally
    uint64_t turns_begin, turns_end;
    struct sim_turn turns[SIM_TURNS];
    _Atomic uint32_t planted[SIM_PLANTS];
    char lock_byte[64];
};

// A client's work on a device: done(t) is piecewise linear; history keeps its
// corners, so that the moment at which a position was reached can be told.
struct sim_corner {
    uint64_t at_ns, done_ns;
};

struct sim_work {
    _Alignas(64) _Atomic uint64_t used_bytes;
    _Atomic uint64_t freeing_bytes, freeing_until_ns;  // of an earlier owner that was killed
    _Alignas(64) _Atomic uint64_t queued_ns;
    _Alignas(64) _Atomic uint64_t done_ns;
    _Atomic uint32_t contexts;
    uint32_t gi, ci;  // SIM_WHOLE_GPU outside MIG
    uint32_t sms, rate;  // ceiling of an MPS client: SMs, and of SIM_RATE; 0 is none
    uint32_t carry;      // what rounding held back, of SIM_RATE nanoseconds
    uint32_t presence;   // buckets count all of the time that it had work
    uint64_t corners;  // how many were written, the newest at corners-1
    uint64_t sharers;  // among how many the newest piece's time was divided
    struct sim_buckets buckets;
    struct sim_corner history[SIM_HISTORY];
};

enum sim_mps_role { SIM_MPS_NONE, SIM_MPS_CONTROL, SIM_MPS_SERVER, SIM_MPS_CLIENT };
enum sim_mps_status { SIM_MPS_INITIALIZING, SIM_MPS_ACTIVE, SIM_MPS_FAULT };

// What a process is in the multi-process service (mps.c).
struct sim_mps {
    _Atomic uint32_t role;
    _Atomic uint32_t failed;      // client: what every call answers from now on; 0 is none
    uint32_t server, generation;  // client: its server's slot
    uint32_t status, uid;         // server
    uint32_t devices;             // control, server: those it serves, one bit each
    uint64_t pinned[SIM_MAX_DEVICES];  // client: what it may hold; 0 is no limit
    char space[65];                    // client: its namespace
};

struct sim_client {
    char lock_byte[64];  // must be first
    _Atomic uint32_t in_use, generation;
    int32_t own_pid;  // in the client's own PID namespace: for people only
    char name[16];
    char cgroup[512];  // cgroup v2 path as the client saw it
    uint64_t cgroup_ids[SIM_MAX_CGROUP_DEPTH];  // its and its ancestors' ids, 0 ends
    _Atomic uint64_t limits[SIM_MAX_LIMITS / 64];  // entries of state->limits over it
    struct sim_mps mps;
    struct sim_work work[SIM_MAX_DEVICES];
};

struct sim_limit {
    _Atomic uint32_t in_use;
    char path[512];       // as given to SetMemoryLimits
    uint64_t cgroup_id;   // kernel id of that cgroup
    _Atomic uint64_t soft[SIM_MAX_DEVICES], hard[SIM_MAX_DEVICES];
};

// Memory that its owner has shared, and that another process uses (holds.c).
struct sim_memory {
    uint32_t slot, generation, dev, pad;
    uint64_t id, size;
};

struct sim_hold {
    _Atomic uint32_t in_use, freed;
    uint32_t holder, pad;
    struct sim_memory of;
};

// What a call takes beyond what the simulation takes for it.
enum sim_call {
    SIM_LAUNCH, SIM_EVENT_RECORD, SIM_EVENT_QUERY, SIM_MEM_INFO, SIM_GPM_SAMPLE,
    SIM_MEM_ALLOC, SIM_MEM_ASYNC,  // each of an allocation and a release
    SIM_CALLS
};

// How a real machine was seen to differ (machine.c).
struct sim_machine {
    char name[16], driver[24];
    uint32_t context_mib, mps_context_mib;
    uint32_t percent_of_presence;  // NVML's percent of a process: of the time that it had work
    uint32_t call_ns[SIM_CALLS];
    uint64_t free_ns;  // until what a killed process held is free
};

struct sim_event {
    uint64_t type, data;
    uint32_t device, gi, ci, pad;
};

struct sim_state {
    uint64_t magic;
    uint32_t version, size;
    char driver_version[32];
    char nvml_version[32];
    int32_t cuda_version;
    uint32_t device_count;
    uint32_t host_pids;  // NVML lists processes by numbers that they don't have
    struct sim_machine machine;
    char lock_byte[64];
    _Atomic uint32_t event_seq;  // futex: count of events ever written
    struct sim_event events[SIM_MAX_EVENTS];
    struct sim_device devices[SIM_MAX_DEVICES];
    struct sim_limit limits[SIM_MAX_LIMITS];
    struct sim_hold holds[SIM_MAX_HOLDS];
    _Atomic uint32_t hold_high;    // holds at and above were never used
    _Atomic uint32_t client_high;  // slots at and above were never used
    struct sim_client clients[SIM_MAX_CLIENTS];
};

// map.c
const char *sim_path(void);
struct sim_state *sim_open(void);
int sim_fd(void);
struct sim_state *sim_create(const char *path);

// lock.c. The state lock guards slots, limits, events and MIG layout; each
// device's lock guards its timeline. Order: state, then device.
void sim_lock(struct sim_state *s);
void sim_unlock(struct sim_state *s);
void sim_lock_device(struct sim_state *s, unsigned dev);
void sim_unlock_device(struct sim_state *s, unsigned dev);

// clients.c
struct sim_client *sim_attach(struct sim_state *s);
void sim_detach(struct sim_state *s, struct sim_client *c);
int sim_client_pid(struct sim_state *s, struct sim_client *c);
unsigned sim_reap(struct sim_state *s);

// holds.c
int sim_hold_add(struct sim_state *s, struct sim_client *holder, const struct sim_memory *of, bool passed);
int sim_hold_pass(struct sim_state *s, const struct sim_memory *of, const void *content, size_t size);
void sim_hold_drop(struct sim_state *s, int hold);
void sim_hold_freed(struct sim_state *s, struct sim_client *owner, uint64_t id, unsigned dev, uint64_t bytes);
void sim_hold_end(struct sim_state *s, uint32_t slot);
uint64_t sim_hold_used(struct sim_state *s, unsigned dev);

// memory.c
bool sim_charge(struct sim_state *s, struct sim_client *c, unsigned dev, uint64_t bytes);
void sim_uncharge(struct sim_client *c, unsigned dev, uint64_t bytes);
uint64_t sim_used(struct sim_state *s, unsigned dev, uint32_t gi);
uint64_t sim_capacity(struct sim_state *s, unsigned dev, uint32_t gi);
uint64_t sim_limit_used(struct sim_state *s, unsigned limit, unsigned dev);
uint64_t sim_available(struct sim_state *s, struct sim_client *c, unsigned dev);

// cgroup.c
void sim_cgroup_self(char *path, size_t len, uint64_t ids[SIM_MAX_CGROUP_DEPTH]);
int sim_cgroup_open(const char *path, uint64_t *id);
bool sim_cgroup_covers(const struct sim_limit *l, const struct sim_client *c);

// access.c
bool sim_device_permitted(const struct sim_state *s, unsigned dev);
bool sim_instance_permitted(const struct sim_state *s, unsigned dev, unsigned gi, unsigned ci);
int sim_cap_minor(unsigned dev_minor, unsigned gi, int ci);

// mps.c
struct sim_client *sim_mps_server(struct sim_state *s, const struct sim_client *c);
bool sim_mps_together(struct sim_state *s, struct sim_client *a, struct sim_client *b);
unsigned sim_mps_clients(struct sim_state *s, const struct sim_client *server);
unsigned sim_mps_contexts(struct sim_state *s, const struct sim_client *server, unsigned dev);
unsigned sim_mps_settle(struct sim_state *s, struct sim_client *server);
void sim_mps_fail(struct sim_state *s, struct sim_client *c, uint32_t code);
void sim_mps_fault(struct sim_state *s, struct sim_client *by, unsigned dev, uint32_t code);
void sim_mps_orphan(struct sim_state *s, uint32_t slot);
uint32_t sim_planted(struct sim_state *s, uint32_t devices, enum sim_plant what);

// rates.c
void sim_rates(struct sim_work *const running[], unsigned n, uint32_t rates[]);
uint64_t sim_time_for(uint64_t more, uint32_t carry, uint32_t rate);
unsigned sim_sms(unsigned sms, double percent);

// events.c
void sim_event(struct sim_state *s, struct sim_event e);
bool sim_event_wait(struct sim_state *s, uint32_t seen, uint64_t deadline_ns);

// timeline.c
uint64_t sim_now(void);
void sim_advance(struct sim_state *s, unsigned dev, uint64_t now);
uint64_t sim_predict(struct sim_state *s, struct sim_client *c, unsigned dev, uint64_t position,
                     uint64_t now);
uint64_t sim_reached_at(struct sim_state *s, struct sim_client *c, unsigned dev,
                        uint64_t position);
uint64_t sim_busy_over(const struct sim_buckets *b, uint64_t now, unsigned buckets);
unsigned sim_percent(uint64_t busy_ns, unsigned buckets);

// serial.c
bool sim_serial_add(struct sim_state *s, struct sim_client *c, unsigned dev, uint64_t position);
uint64_t sim_serial_left(struct sim_state *s, unsigned dev, uint64_t turn);
uint64_t sim_serial_wait(struct sim_state *s, struct sim_client *c, unsigned dev,
                         uint64_t position);

// links.c
enum { SIM_NO_LINK = -1, SIM_SWITCH = SIM_MAX_DEVICES };  // SIM_SWITCH + n is the nth switch
int sim_link(const struct sim_state *s, unsigned dev, unsigned link);
bool sim_linked(const struct sim_state *s, unsigned a, unsigned b);
bool sim_multicast(const struct sim_state *s, unsigned dev);

// machine.c
const struct sim_machine *sim_machine(const char *name);
void sim_spend(uint64_t ns);

static inline void sim_takes(const struct sim_state *s, enum sim_call call) {
    if (__builtin_expect(s->machine.call_ns[call] != 0, 0)) sim_spend(s->machine.call_ns[call]);
}

// models.c
struct sim_profile {
    int profile;  // NVML_GPU_INSTANCE_PROFILE_*; -1 ends the list
    unsigned id, slices, memory_slices, max, memory_mib, sms, copy, decoders, jpegs, ofas;
    unsigned starts[8], start_count;
    const char *name;
};

struct sim_model {
    const char *key, *name, *part, *board;
    unsigned major, minor, arch, brand;  // arch and brand as in nvml.h
    unsigned pci_device, pci_subsystem;
    uint64_t total_mib, reserved_mib;
    unsigned sms, cores_per_sm, sm_clock_mhz, mem_clock_mhz, bus_bits, l2_bytes;
    unsigned shared_per_block, shared_per_sm, threads_per_sm, blocks_per_sm;
    unsigned power_limit_mw, idle_mw, idle_c, busy_c, nvlinks;
    const struct sim_profile *profiles;  // NULL: no MIG
};

const struct sim_model *sim_model(const char *key);
const struct sim_model *sim_model_at(unsigned index);
const struct sim_profile *sim_profile_by_id(const struct sim_model *m, unsigned id);
void sim_uuid(uint8_t out[16], const char *seed, unsigned n);
void sim_uuid_text(char *out, size_t len, const char *prefix, const uint8_t uuid[16]);

#endif
