// SPDX-License-Identifier: Apache-2.0
//
// faults.c: simgpuctl xid, ecc, lose, recover, links, stretch, gpm, replace, module.
//
// Invariants:
// - A fault is visible (counter, lost flag) before its event is.
// - A replaced device has its place and another identity; nothing of the old one
//   is left but its bus id and minor number.
#define _GNU_SOURCE
#include "ctl.h"

#include <stdlib.h>
#include <string.h>

// Event bits as in nvml.h.
enum { SINGLE_BIT_ECC = 1, DOUBLE_BIT_ECC = 2, XID = 8 };

static void raise_event(struct sim_state *s, int dev, uint64_t type, uint64_t data) {
    sim_event(s, (struct sim_event){.type = type,
                                    .data = data,
                                    .device = (uint32_t)dev,
                                    .gi = SIM_WHOLE_GPU,
                                    .ci = SIM_WHOLE_GPU});
}

int cmd_xid(int argc, char **argv) {
    uint64_t code, gi = SIM_WHOLE_GPU;
    if (argc < 2 || argc > 3 || !number(argv[1], 999, &code) ||
        (argc == 3 && !number(argv[2], SIM_MAX_INSTANCES - 1, &gi)))
        return fail("usage: simgpuctl xid DEVICE CODE [GPU-INSTANCE]");
    struct sim_state *s = must_open();
    int dev = device_arg(s, argv[0]);
    if (dev < 0) return 1;
    if (argc == 3 && !s->devices[dev].gi[gi].used)
        return fail("no GPU instance %s on device %s: 'simgpuctl status' lists them", argv[2], argv[0]);
    sim_event(s, (struct sim_event){.type = XID,
                                    .data = code,
                                    .device = (uint32_t)dev,
                                    .gi = (uint32_t)gi,
                                    .ci = argc == 3 ? 0 : SIM_WHOLE_GPU});
    return 0;
}

int cmd_ecc(int argc, char **argv) {
    uint64_t count = 1;
    bool corrected = argc > 1 && strcmp(argv[1], "corrected") == 0;
    if (argc < 2 || argc > 3 || (!corrected && strcmp(argv[1], "uncorrected") != 0) ||
        (argc == 3 && !number(argv[2], 1u << 30, &count)))
        return fail("usage: simgpuctl ecc DEVICE corrected|uncorrected [COUNT]");
    struct sim_state *s = must_open();
    int dev = device_arg(s, argv[0]);
    if (dev < 0) return 1;
    struct sim_device *d = &s->devices[dev];
    atomic_fetch_add(corrected ? &d->ecc_corrected : &d->ecc_uncorrected, count);
    raise_event(s, dev, corrected ? SINGLE_BIT_ECC : DOUBLE_BIT_ECC, 0);
    if (!corrected) raise_event(s, dev, XID, 48);
    return 0;
}

static int set_lost(int argc, char **argv, bool lost) {
    if (argc != 1) return fail("usage: simgpuctl %s DEVICE", lost ? "lose" : "recover");
    struct sim_state *s = must_open();
    int dev = device_arg(s, argv[0]);
    if (dev < 0) return 1;
    sim_lock_device(s, (unsigned)dev);
    sim_advance(s, (unsigned)dev, sim_now());
    atomic_store(&s->devices[dev].lost, lost);
    sim_unlock_device(s, (unsigned)dev);
    if (lost) raise_event(s, dev, XID, 79);
    return 0;
}

int cmd_lose(int argc, char **argv) { return set_lost(argc, argv, true); }
int cmd_recover(int argc, char **argv) { return set_lost(argc, argv, false); }

int cmd_links(int argc, char **argv) {
    bool down = argc == 2 && strcmp(argv[1], "down") == 0;
    if (argc != 2 || (!down && strcmp(argv[1], "up") != 0)) return fail("usage: simgpuctl links DEVICE up|down");
    struct sim_state *s = must_open();
    int dev = device_arg(s, argv[0]);
    if (dev < 0) return 1;
    atomic_store(&s->devices[dev].links_down, down);
    return 0;
}

int cmd_stretch(int argc, char **argv) {
    uint64_t percent;
    if (argc != 2 || !number(argv[1], 10000, &percent) || percent < 100)
        return fail("usage: simgpuctl stretch DEVICE PERCENT, 100 to 10000");
    struct sim_state *s = must_open();
    int dev = device_arg(s, argv[0]);
    if (dev < 0) return 1;
    atomic_store(&s->devices[dev].stretch, (uint32_t)percent - 100);
    return 0;
}

int cmd_gpm(int argc, char **argv) {
    uint64_t metric;
    char *end = NULL;
    double value = argc == 3 ? strtod(argv[2], &end) : -1;
    if (argc != 3 || !number(argv[1], SIM_GPM - 1, &metric) || *end || !(value >= 0 && value <= 4e6))
        return fail("usage: simgpuctl gpm DEVICE METRIC VALUE");
    struct sim_state *s = must_open();
    int dev = device_arg(s, argv[0]);
    if (dev < 0) return 1;
    atomic_store(&s->devices[dev].gpm[metric], (uint32_t)(value * 1000 + 0.5));
    return 0;
}

int cmd_replace(int argc, char **argv) {
    char seed[64];
    if (argc != 1) return fail("usage: simgpuctl replace DEVICE");
    struct sim_state *s = must_open();
    int dev = device_arg(s, argv[0]);
    if (dev < 0) return 1;
    struct sim_device *d = &s->devices[dev];
    sim_uuid_text(seed, sizeof seed, "after", d->uuid);
    sim_lock(s);
    sim_uuid(d->uuid, seed, (unsigned)dev);
    memset(d->gi, 0, sizeof d->gi);
    atomic_fetch_add(&d->mig_generation, 1);
    atomic_store(&d->ecc_corrected, 0);
    atomic_store(&d->ecc_uncorrected, 0);
    atomic_store(&d->lost, 0);
    sim_unlock(s);
    return 0;
}

int cmd_module(int argc, char **argv) {
    if (argc != 1 || !*argv[0] || strlen(argv[0]) >= sizeof ((struct sim_state *)0)->driver_version)
        return fail("usage: simgpuctl module VERSION");
    struct sim_state *s = must_open();
    sim_lock(s);
    strcpy(s->driver_version, argv[0]);
    sim_unlock(s);
    return 0;
}
