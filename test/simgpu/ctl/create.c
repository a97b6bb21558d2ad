// SPDX-License-Identifier: Apache-2.0
//
// create.c: simgpuctl create.
//
// Invariants:
// - The same arguments make the same devices: UUIDs follow from seed and index,
//   bus ids and minor numbers from the index alone.
// - What is asked for by an option of its own wins over the profile.
// - Devices of all --gpu options, and those of templates, are numbered in the order given.
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

// path reads HOSTBRIDGE[.SWITCH]…, the PCIe path of a device from above.
static bool path(const char *text, struct sim_place *p) {
    char *end;
    for (p->pcie_depth = 0; p->pcie_depth < SIM_PCIE_DEPTH; text = end + 1) {
        p->pcie[p->pcie_depth++] = (uint32_t)strtoul(text, &end, 10);
        if (end == text || *text == '-' || (*end && *end != '.')) return false;
        if (!*end) return true;
    }
    return false;
}

// fabric reads CLUSTERUUID.CLIQUE.
static bool fabric(const char *text, struct sim_place *p) {
    uint64_t clique;
    unsigned n = 0, byte;
    for (; n < sizeof p->cluster && sscanf(text, "%2x", &byte) == 1; text += *text == '-') {
        p->cluster[n++] = (uint8_t)byte;
        text += 2;
    }
    if (n < sizeof p->cluster || *text != '.' || !number(text + 1, UINT32_MAX, &clique)) return false;
    p->fabric = 1;
    p->clique = (uint32_t)clique;
    return true;
}

// add_gpus understands MODEL and the options that its complaint lists.
static int add_gpus(struct sim_state *s, const char *text, const char *seed) {
    uint64_t count = 1, numa = 0, mig = 0, serial = 0, switches = 0;
    struct sim_place place = {0};
    char spec[256];
    snprintf(spec, sizeof spec, "%s", text);
    char *rest = spec, *key = strsep(&rest, ",");
    const struct sim_model *m = sim_model(key);
    if (!m) return fail("unknown model %s: see 'simgpuctl help' for the list", key);
    for (char *opt; (opt = strsep(&rest, ","));) {
        bool ok = (strncmp(opt, "count=", 6) == 0 && number(opt + 6, SIM_MAX_DEVICES, &count)) ||
                  (strncmp(opt, "numa=", 5) == 0 && number(opt + 5, 63, &numa)) ||
                  (strncmp(opt, "pcie=", 5) == 0 && path(opt + 5, &place)) ||
                  (strncmp(opt, "switch=", 7) == 0 && number(opt + 7, SIM_MAX_SWITCHES, &switches)) ||
                  (strncmp(opt, "fabric=", 7) == 0 && fabric(opt + 7, &place)) ||
                  (strncmp(opt, "mig=", 4) == 0 && number(opt + 4, 1, &mig)) ||
                  (strncmp(opt, "serial=", 7) == 0 && number(opt + 7, 1, &serial));
        if (!ok)
            return fail("--gpu %s: %s is none of count=N, numa=N, pcie=HOSTBRIDGE[.SWITCH]..., switch=N,"
                        " fabric=CLUSTERUUID.CLIQUE, mig=0|1, serial=0|1", key, opt);
    }
    place.numa_node = (uint32_t)numa;
    place.switches = (uint32_t)switches;
    if (switches && !m->nvlinks) return fail("--gpu %s: the model has no NVLink", key);
    if (place.fabric && (!switches || m->major < 9)) return fail("--gpu %s: a fabric needs Hopper or later, and switch=N", key);
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
        d->place = place;
        d->serial = (uint32_t)serial;
        d->total_bytes = m->total_mib * SIM_MIB;
        d->reserved_bytes = m->reserved_mib * SIM_MIB;
        d->context_bytes = s->machine.context_mib * SIM_MIB;
        d->mps_context_bytes = s->machine.mps_context_mib * SIM_MIB;
        atomic_store(&d->persistence, 1);
        atomic_store(&d->mig_current, (uint32_t)mig);
        atomic_store(&d->mig_pending, (uint32_t)mig);
        s->device_count = n + 1;
    }
    return 0;
}

// bridge links two devices, A-B, that are there.
static int bridge(struct sim_state *s, const char *text) {
    unsigned a, b;
    char more;
    if (sscanf(text, "%u-%u%c", &a, &b, &more) != 2 || a == b || a >= s->device_count || b >= s->device_count)
        return fail("--bridge %s: give the indices of two devices of the --gpu before it, such as 0-1", text);
    struct sim_device *x = &s->devices[a], *y = &s->devices[b];
    if (x->place.switches || y->place.switches || !sim_model(x->model)->nvlinks || !sim_model(y->model)->nvlinks)
        return fail("--bridge %s: both need a model with NVLink, and no switch", text);
    x->place.bridged |= 1u << b;
    y->place.bridged |= 1u << a;
    return 0;
}

// Machines as they are sold: options and their values.
#define HGX_FABRIC ",count=2,switch=4,fabric=00000000-0000-0000-0000-000000000000.0"
static const struct {
    const char *name, *options[9];
} templates[] = {
    {"hgx-h100-8", {"--gpu", "H100-80GB,numa=0,pcie=0.0" HGX_FABRIC, "--gpu", "H100-80GB,numa=0,pcie=1.0" HGX_FABRIC,
                    "--gpu", "H100-80GB,numa=1,pcie=2.0" HGX_FABRIC, "--gpu", "H100-80GB,numa=1,pcie=3.0" HGX_FABRIC}},
    {"a100-bridged-4", {"--gpu", "A100-SXM4-80GB,count=2,numa=0", "--gpu", "A100-SXM4-80GB,count=2,numa=1",
                        "--bridge", "0-1", "--bridge", "2-3"}},
    {"l40s-8", {"--gpu", "L40S,count=4,numa=0,pcie=0.0", "--gpu", "L40S,count=4,numa=1,pcie=1.0"}},
};

static int add(struct sim_state *s, const char *option, const char *value, const char *seed) {
    if (strcmp(option, "--gpu") == 0) return add_gpus(s, value, seed);
    if (strcmp(option, "--bridge") == 0) return bridge(s, value);
    if (strcmp(option, "--template") != 0) return 0;
    for (unsigned t = 0; t < sizeof templates / sizeof *templates; t++) {
        if (strcmp(templates[t].name, value) != 0) continue;
        for (const char *const *o = templates[t].options; *o; o += 2)
            if (add(s, o[0], o[1], seed)) return 1;
        return 0;
    }
    return fail("--template %s: there are hgx-h100-8, a100-bridged-4 and l40s-8", value);
}

int cmd_create(int argc, char **argv) {
    const char *driver = NULL, *seed = "simgpu", *path = sim_path();
    struct sim_machine machine = {.driver = "615.43.02"};
    uint64_t context_mib = UINT64_MAX;
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
        if (strcmp(argv[i], "--profile") == 0) {
            const struct sim_machine *m = sim_machine(argv[i + 1]);
            if (!m) return fail("--profile %s: there is h100-vm", argv[i + 1]);
            machine = *m;
        }
        if (strcmp(argv[i], "--seed") == 0) seed = argv[i + 1];
        if (strcmp(argv[i], "--pids") == 0) host_pids = strcmp(argv[i + 1], "host") == 0;
        if (strcmp(argv[i], "--context-mib") == 0 && !number(argv[i + 1], 4096, &context_mib))
            return fail("--context-mib %s: give MiB, 0 to 4096", argv[i + 1]);
    }
    if (context_mib <= 4096) machine.context_mib = machine.mps_context_mib = (uint32_t)context_mib;
    struct sim_state *s = sim_create(path);
    if (!s) return fail("cannot write %s.new: %s", path, strerror(errno));
    s->machine = machine;
    if (!driver) driver = machine.driver;
    if (!set_driver(s, driver))
        return fail("--driver %s: give a version of branch 525 or later, such as 535.161.08",
                    driver);
    s->host_pids = host_pids;
    for (int i = 0; i < argc; i += 2) {
        static const char *const known[] = {"--driver", "--seed", "--context-mib", "--pids", "--profile", "--gpu",
                                           "--bridge", "--template"};
        bool ok = i + 1 < argc;
        if (ok) {
            ok = false;
            for (unsigned k = 0; k < sizeof known / sizeof *known; k++) ok |= strcmp(argv[i], known[k]) == 0;
        }
        if (!ok) return fail("create: %s: unknown, or without its value", argv[i]);
        if (add(s, argv[i], argv[i + 1], seed)) return 1;
    }
    for (unsigned c = 0; c < SIM_MAX_DEVICES; c++) atomic_store(&s->devices[c].advanced_ns, 0);
    snprintf(aside, sizeof aside, "%.4000s.new", path);
    if (rename(aside, path) < 0) return fail("cannot rename to %s: %s", path, strerror(errno));
    return 0;
}
