// SPDX-License-Identifier: Apache-2.0
//
// mps.c: simgpuctl mps: faults of the multi-process service.
//
// Invariants:
// - What is planted stays planted, for daemons yet to start too, until it is taken
//   back. It hits the daemons that serve the device.
// - What is killed is killed by SIGKILL, as it would die.
#define _GNU_SOURCE
#include "ctl.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { XID = 8, LAUNCH_FAILED = 719 };  // as in nvml.h and cuda.h

// find returns a live process of a role that serves the device, or that has a
// context on it and, if pid is not 0, that PID.
static struct sim_client *find(struct sim_state *s, uint32_t role, unsigned dev, int pid) {
    for (unsigned i = 0; i < atomic_load(&s->client_high); i++) {
        struct sim_client *c = &s->clients[i];
        if (!atomic_load(&c->in_use) || atomic_load(&c->mps.role) != role) continue;
        bool there = role == SIM_MPS_CLIENT ? atomic_load(&c->work[dev].contexts) > 0
                                            : c->mps.devices >> dev & 1;
        if (there && (!pid || sim_client_pid(s, c) == pid)) return c;
    }
    return NULL;
}

static int end(struct sim_state *s, uint32_t role, unsigned dev, const char *what) {
    sim_lock(s);
    sim_reap(s);
    struct sim_client *c = find(s, role, dev, 0);
    int pid = c ? sim_client_pid(s, c) : 0;
    sim_unlock(s);
    if (!c) return fail("mps: device %u has no MPS %s", dev, what);
    if (pid <= 0 || kill(pid, SIGKILL) < 0)
        return fail("mps: cannot kill the MPS %s: is it in another PID namespace?", what);
    return 0;
}

static int client_fault(struct sim_state *s, unsigned dev, int pid) {
    sim_lock(s);
    sim_reap(s);
    struct sim_client *c = find(s, SIM_MPS_CLIENT, dev, pid);
    if (c) sim_mps_fault(s, c, dev, LAUNCH_FAILED);
    sim_unlock(s);
    if (!c) return fail("mps: no such MPS client on device %u; 'simgpuctl status' lists them", dev);
    sim_event(s, (struct sim_event){.type = XID, .data = 31, .device = dev,
                                    .gi = SIM_WHOLE_GPU, .ci = SIM_WHOLE_GPU});
    return 0;
}

static int plant(struct sim_device *d, const char *name, const char *value) {
    static const char *const names[] = {[SIM_REFUSE] = "refuse", [SIM_IGNORE] = "ignore",
                                        [SIM_SLOW] = "slow", [SIM_HANG] = "hang",
                                        [SIM_NO_START] = "no-start"};
    for (unsigned i = 0; i < SIM_PLANTS; i++) {
        if (strcmp(names[i], name) != 0) continue;
        uint64_t n = value && strcmp(value, "on") == 0;
        bool ok = value && (i == SIM_SLOW ? number(value, 600000, &n)
                                          : n || strcmp(value, "off") == 0);
        if (!ok) return fail("mps: %s wants %s", name, i == SIM_SLOW ? "milliseconds" : "on or off");
        atomic_store(&d->planted[i], (uint32_t)n);
        return 0;
    }
    return fail("mps: %s is none of crash, server-crash, fault, refuse, ignore, slow, hang, no-start",
                name);
}

int cmd_mps(int argc, char **argv) {
    uint64_t pid = 0;
    if (argc < 2 || argc > 3) return fail("usage: simgpuctl mps DEVICE FAULT [VALUE]");
    struct sim_state *s = must_open();
    int dev = device_arg(s, argv[0]);
    if (dev < 0) return 1;
    const char *fault = argv[1], *value = argc > 2 ? argv[2] : NULL;
    if (strcmp(fault, "crash") == 0) return end(s, SIM_MPS_CONTROL, (unsigned)dev, "control daemon");
    if (strcmp(fault, "server-crash") == 0) return end(s, SIM_MPS_SERVER, (unsigned)dev, "server");
    if (strcmp(fault, "fault") != 0) return plant(&s->devices[dev], fault, value);
    if (value && !number(value, 1u << 30, &pid)) return fail("mps: %s is no PID", value);
    return client_fault(s, (unsigned)dev, (int)pid);
}
