// SPDX-License-Identifier: Apache-2.0
//
// create.c: simgpuctl create.
//
// Invariants:
// - The same arguments make the same devices: UUIDs follow from seed and index,
//   bus ids and minor numbers from the index alone.
// - Devices of all --gpu options are numbered in the order given.
#define _GNU_SOURCE
#include "ctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
    unsigned branch;
    int cuda;
} branches[] = {{615, 13040}, {595, 13020}, {590, 13010}, {580, 13000}, {570, 12080},
                {560, 12060}, {555, 12050}, {550, 12040}, {545, 12030}, {535, 12020}, {525, 12000}};

static bool set_driver(struct sim_state *s, const char *version) {
    unsigned major = (unsigned)strtoul(version, NULL, 10);
    for (unsigned i = 0; i < sizeof branches / sizeof *branches; i++) {
        if (major < branches[i].branch || strlen(version) > 24) continue;
        s->cuda_version = branches[i].cuda;
        snprintf(s->driver_version, sizeof s->driver_version, "%s", version);
        snprintf(s->nvml_version, sizeof s->nvml_version, "%u.%.24s",
                 (unsigned)s->cuda_version / 1000 % 100, version);
        return true;
    }
    return false;
}

// add_gpus understands MODEL[,count=N][,numa=N][,mig=1][,serial=1].
static int add_gpus(struct sim_state *s, char *spec, const char *seed, uint64_t context_mib) {
    uint64_t count = 1, numa = 0, mig = 0, serial = 0;
    char *rest = spec, *key = strsep(&rest, ",");
    const struct sim_model *m = sim_model(key);
    if (!m) return fail("unknown model %s: see 'simgpuctl help' for the list", key);
    for (char *opt; (opt = strsep(&rest, ","));) {
        bool ok = (strncmp(opt, "count=", 6) == 0 && number(opt + 6, SIM_MAX_DEVICES, &count)) ||
                  (strncmp(opt, "numa=", 5) == 0 && number(opt + 5, 63, &numa)) ||
                  (strncmp(opt, "mig=", 4) == 0 && number(opt + 4, 1, &mig)) ||
                  (strncmp(opt, "serial=", 7) == 0 && number(opt + 7, 1, &serial));
        if (!ok) return fail("--gpu %s: %s is none of count=N, numa=N, mig=0|1, serial=0|1", key, opt);
    }
    if (mig && serial) return fail("--gpu %s: mig or serial, not both", key);
    if (mig && !m->profiles) return fail("--gpu %s: the model has no MIG", key);
    for (; count; count--) {
        unsigned n = s->device_count;
        if (n == SIM_MAX_DEVICES) return fail("more than %d devices", SIM_MAX_DEVICES);
        struct sim_device *d = &s->devices[n];
        snprintf(d->model, sizeof d->model, "%s", m->key);
        sim_uuid(d->uuid, seed, n);
        d->minor = n;
        d->bus = 0x07 + 0x08 * n;
        d->numa_node = (uint32_t)numa;
        d->serial = (uint32_t)serial;
        d->total_bytes = m->total_mib * SIM_MIB;
        d->reserved_bytes = m->reserved_mib * SIM_MIB;
        d->context_bytes = context_mib * SIM_MIB;
        atomic_store(&d->persistence, 1);
        atomic_store(&d->mig_current, (uint32_t)mig);
        atomic_store(&d->mig_pending, (uint32_t)mig);
        s->device_count = n + 1;
    }
    return 0;
}

int cmd_create(int argc, char **argv) {
    const char *driver = "615.43.02", *seed = "simgpu", *path = sim_path();
    uint64_t context_mib = 0;
    bool host_pids = false;
    char aside[4096], folder[4096];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash && slash != folder) {
        *slash = 0;
        mkdir(folder, 0755);
    }
    for (int i = 0; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--driver") == 0) driver = argv[i + 1];
        if (strcmp(argv[i], "--seed") == 0) seed = argv[i + 1];
        if (strcmp(argv[i], "--pids") == 0) host_pids = strcmp(argv[i + 1], "host") == 0;
        if (strcmp(argv[i], "--context-mib") == 0 && !number(argv[i + 1], 4096, &context_mib))
            return fail("--context-mib %s: give MiB, 0 to 4096", argv[i + 1]);
    }
    struct sim_state *s = sim_create(path);
    if (!s) return fail("cannot write %s.new: %s", path, strerror(errno));
    if (!set_driver(s, driver))
        return fail("--driver %s: give a version of branch 525 or later, such as 535.161.08",
                    driver);
    s->host_pids = host_pids;
    for (int i = 0; i < argc; i += 2) {
        static const char *const known[] = {"--driver", "--seed", "--context-mib", "--pids", "--gpu"};
        bool ok = i + 1 < argc;
        if (ok) {
            ok = false;
            for (unsigned k = 0; k < sizeof known / sizeof *known; k++) ok |= strcmp(argv[i], known[k]) == 0;
        }
        if (!ok) return fail("create: %s: unknown, or without its value", argv[i]);
        if (strcmp(argv[i], "--gpu") == 0 && add_gpus(s, argv[i + 1], seed, context_mib)) return 1;
    }
    for (unsigned c = 0; c < SIM_MAX_DEVICES; c++) atomic_store(&s->devices[c].advanced_ns, 0);
    snprintf(aside, sizeof aside, "%.4000s.new", path);
    if (rename(aside, path) < 0) return fail("cannot rename to %s: %s", path, strerror(errno));
    return 0;
}
