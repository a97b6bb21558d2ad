// SPDX-License-Identifier: Apache-2.0
//
// models.c: what the simulated GPU models are, as their data sheets and
// nvidia-smi state it.
//
// Invariant: MIG profiles have the real ids, sizes and possible starts; a
// profile's name follows from slices and memory as go-nvlib computes it.
#include "state.h"

#include <stdio.h>
#include <string.h>

#define AT7 {0, 1, 2, 3, 4, 5, 6}, 7
#define AT_EVEN4 {0, 2, 4, 6}, 4
#define AT_EVEN3 {0, 2, 4}, 3
#define AT_HALF {0, 4}, 2
#define AT_ZERO {0}, 1

// {NVML profile, id, slices, memory slices, max, MiB, SMs, copy, dec, jpeg, ofa, starts, name}
static const struct sim_profile a100_80[] = {
    {0, 19, 1, 1, 7, 9728, 14, 1, 0, 0, 0, AT7, "MIG 1g.10gb"},
    {7, 20, 1, 1, 1, 9728, 14, 1, 1, 1, 1, AT7, "MIG 1g.10gb+me"},
    {9, 15, 1, 2, 4, 19968, 14, 1, 1, 0, 0, AT_EVEN4, "MIG 1g.20gb"},
    {1, 14, 2, 2, 3, 19968, 28, 2, 1, 0, 0, AT_EVEN3, "MIG 2g.20gb"},
    {2, 9, 3, 4, 2, 40192, 42, 3, 2, 0, 0, AT_HALF, "MIG 3g.40gb"},
    {3, 5, 4, 4, 1, 40192, 56, 4, 2, 0, 0, AT_ZERO, "MIG 4g.40gb"},
    {4, 0, 7, 8, 1, 80896, 98, 7, 5, 1, 1, AT_ZERO, "MIG 7g.80gb"},
    {.profile = -1},
};

static const struct sim_profile h100_80[] = {
    {0, 19, 1, 1, 7, 9984, 16, 1, 1, 1, 0, AT7, "MIG 1g.10gb"},
    {7, 20, 1, 1, 1, 9984, 16, 1, 1, 1, 1, AT7, "MIG 1g.10gb+me"},
    {9, 15, 1, 2, 4, 20096, 26, 1, 1, 1, 0, AT_EVEN4, "MIG 1g.20gb"},
    {1, 14, 2, 2, 3, 20096, 32, 2, 2, 2, 0, AT_EVEN3, "MIG 2g.20gb"},
    {2, 9, 3, 4, 2, 40448, 60, 3, 3, 3, 0, AT_HALF, "MIG 3g.40gb"},
    {3, 5, 4, 4, 1, 40448, 64, 4, 4, 4, 0, AT_ZERO, "MIG 4g.40gb"},
    {4, 0, 7, 8, 1, 81152, 132, 8, 7, 7, 1, AT_ZERO, "MIG 7g.80gb"},
    {.profile = -1},
};

static const struct sim_profile h200_141[] = {
    {0, 19, 1, 1, 7, 16384, 16, 1, 1, 1, 0, AT7, "MIG 1g.18gb"},
    {7, 20, 1, 1, 1, 16384, 16, 1, 1, 1, 1, AT7, "MIG 1g.18gb+me"},
    {9, 15, 1, 2, 4, 33280, 26, 1, 1, 1, 0, AT_EVEN4, "MIG 1g.35gb"},
    {1, 14, 2, 2, 3, 33280, 32, 2, 2, 2, 0, AT_EVEN3, "MIG 2g.35gb"},
    {2, 9, 3, 4, 2, 71424, 60, 3, 3, 3, 0, AT_HALF, "MIG 3g.71gb"},
    {3, 5, 4, 4, 1, 71424, 64, 4, 4, 4, 0, AT_ZERO, "MIG 4g.71gb"},
    {4, 0, 7, 8, 1, 143360, 132, 8, 7, 7, 1, AT_ZERO, "MIG 7g.141gb"},
    {.profile = -1},
};

static const struct sim_model models[] = {
    {.key = "A100-SXM4-80GB", .name = "NVIDIA A100-SXM4-80GB", .part = "692-2G506-0210-002",
     .board = "2G506", .major = 8, .minor = 0, .arch = 7, .brand = 14,
     .pci_device = 0x20b210de, .pci_subsystem = 0x146310de,
     .total_mib = 81920, .reserved_mib = 607, .sms = 108, .cores_per_sm = 64,
     .sm_clock_mhz = 1410, .mem_clock_mhz = 1593, .bus_bits = 5120, .l2_bytes = 41943040,
     .shared_per_block = 166912, .shared_per_sm = 167936, .threads_per_sm = 2048,
     .blocks_per_sm = 32, .power_limit_mw = 400000, .idle_mw = 62000, .idle_c = 31,
     .busy_c = 62, .nvlinks = 12, .profiles = a100_80},
    {.key = "H100-80GB", .name = "NVIDIA H100 80GB HBM3", .part = "692-2G520-0200-000",
     .board = "2G520", .major = 9, .minor = 0, .arch = 9, .brand = 14,
     .pci_device = 0x233010de, .pci_subsystem = 0x16c110de,
     .total_mib = 81559, .reserved_mib = 396, .sms = 132, .cores_per_sm = 128,
     .sm_clock_mhz = 1980, .mem_clock_mhz = 2619, .bus_bits = 5120, .l2_bytes = 52428800,
     .shared_per_block = 232448, .shared_per_sm = 233472, .threads_per_sm = 2048,
     .blocks_per_sm = 32, .power_limit_mw = 700000, .idle_mw = 71000, .idle_c = 30,
     .busy_c = 65, .nvlinks = 18, .profiles = h100_80},
    {.key = "H200-141GB", .name = "NVIDIA H200", .part = "692-2G520-0280-001",
     .board = "2G520", .major = 9, .minor = 0, .arch = 9, .brand = 14,
     .pci_device = 0x233510de, .pci_subsystem = 0x18be10de,
     .total_mib = 143771, .reserved_mib = 384, .sms = 132, .cores_per_sm = 128,
     .sm_clock_mhz = 1980, .mem_clock_mhz = 3201, .bus_bits = 6144, .l2_bytes = 62914560,
     .shared_per_block = 232448, .shared_per_sm = 233472, .threads_per_sm = 2048,
     .blocks_per_sm = 32, .power_limit_mw = 700000, .idle_mw = 76000, .idle_c = 30,
     .busy_c = 63, .nvlinks = 18, .profiles = h200_141},
    {.key = "L40S", .name = "NVIDIA L40S", .part = "900-2G133-0080-000",
     .board = "2G133", .major = 8, .minor = 9, .arch = 8, .brand = 14,
     .pci_device = 0x26b910de, .pci_subsystem = 0x185110de,
     .total_mib = 46068, .reserved_mib = 592, .sms = 142, .cores_per_sm = 128,
     .sm_clock_mhz = 2520, .mem_clock_mhz = 9001, .bus_bits = 384, .l2_bytes = 100663296,
     .shared_per_block = 101376, .shared_per_sm = 102400, .threads_per_sm = 1536,
     .blocks_per_sm = 24, .power_limit_mw = 350000, .idle_mw = 34000, .idle_c = 28,
     .busy_c = 64, .nvlinks = 0, .profiles = NULL},
    {.key = "T4", .name = "Tesla T4", .part = "900-2G183-0000-001",
     .board = "2G183", .major = 7, .minor = 5, .arch = 6, .brand = 2,
     .pci_device = 0x1eb810de, .pci_subsystem = 0x12a210de,
     .total_mib = 15360, .reserved_mib = 449, .sms = 40, .cores_per_sm = 64,
     .sm_clock_mhz = 1590, .mem_clock_mhz = 5001, .bus_bits = 256, .l2_bytes = 4194304,
     .shared_per_block = 65536, .shared_per_sm = 65536, .threads_per_sm = 1024,
     .blocks_per_sm = 16, .power_limit_mw = 70000, .idle_mw = 9000, .idle_c = 33,
     .busy_c = 68, .nvlinks = 0, .profiles = NULL},
};

const struct sim_model *sim_model_at(unsigned index) {
    return index < sizeof models / sizeof *models ? &models[index] : NULL;
}

const struct sim_model *sim_model(const char *key) {
    for (unsigned i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].key, key) == 0) return &models[i];
    return NULL;
}

const struct sim_profile *sim_profile_by_id(const struct sim_model *m, unsigned id) {
    for (const struct sim_profile *p = m->profiles; p && p->profile >= 0; p++)
        if (p->id == id) return p;
    return NULL;
}

// sim_uuid makes a version 4 shaped UUID that depends only on seed and n.
void sim_uuid(uint8_t out[16], const char *seed, unsigned n) {
    uint64_t h = 0xcbf29ce484222325ull ^ ((uint64_t)n * 0x9e3779b97f4a7c15ull);
    for (const char *p = seed; *p; p++) h = (h ^ (uint8_t)*p) * 0x100000001b3ull;
    for (unsigned i = 0; i < 16; i++) {
        h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9ull + i;
        out[i] = (uint8_t)(h >> 40);
    }
    out[6] = (uint8_t)((out[6] & 0x0f) | 0x40);
    out[8] = (uint8_t)((out[8] & 0x3f) | 0x80);
}

void sim_uuid_text(char *out, size_t len, const char *prefix, const uint8_t u[16]) {
    snprintf(out, len,
             "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix,
             u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12],
             u[13], u[14], u[15]);
}
