// SPDX-License-Identifier: Apache-2.0
//
// status.c: simgpuctl status.
//
// Invariant: every line is a word and then key=value pairs without blanks in
// the values; keys are only ever added.
#define _GNU_SOURCE
#include "ctl.h"

#include <inttypes.h>
#include <stdio.h>

static void print_device(struct sim_state *s, unsigned n) {
    struct sim_device *d = &s->devices[n];
    char uuid[64];
    sim_uuid_text(uuid, sizeof uuid, "GPU", d->uuid);
    printf("device index=%u model=%s uuid=%s minor=%u bus=%08x:%02x:00.0 numa=%u total_mib=%" PRIu64
           " reserved_mib=%" PRIu64 " used_bytes=%" PRIu64 " busy_ns=%" PRIu64
           " lost=%u mig=%u ecc_corrected=%" PRIu64 " ecc_uncorrected=%" PRIu64 "\n",
           n, d->model, uuid, d->minor, d->domain, d->bus, d->place.numa_node, d->total_bytes / SIM_MIB,
           d->reserved_bytes / SIM_MIB, sim_used(s, n, SIM_WHOLE_GPU), atomic_load(&d->busy_ns),
           atomic_load(&d->lost), atomic_load(&d->mig_current), atomic_load(&d->ecc_corrected),
           atomic_load(&d->ecc_uncorrected));
    for (unsigned g = 0; g < SIM_MAX_INSTANCES; g++)
        for (unsigned c = 0; d->gi[g].used && c < 8; c++) {
            if (!d->gi[g].ci[c].used) continue;
            sim_uuid_text(uuid, sizeof uuid, "MIG", d->gi[g].ci[c].uuid);
            printf("mig device=%u gi=%u ci=%u uuid=%s gi_profile=%u ci_profile=%u start=%u size=%u\n",
                   n, g, c, uuid, d->gi[g].profile, d->gi[g].ci[c].profile, d->gi[g].start,
                   d->gi[g].size);
        }
}

static void print_client(struct sim_state *s, unsigned n) {
    static const char *const roles[] = {"-", "control", "server", "client"};
    struct sim_client *c = &s->clients[n];
    for (unsigned d = 0; d < s->device_count; d++) {
        struct sim_work *w = &c->work[d];
        if (!atomic_load(&w->contexts) && !atomic_load(&w->used_bytes)) continue;
        printf("client slot=%u pid=%d device=%u gi=%d contexts=%u used_bytes=%" PRIu64
               " queued_ns=%" PRIu64 " done_ns=%" PRIu64 " cgroup=%s mps=%s\n",
               n, sim_client_pid(s, c), d, (int)w->gi, atomic_load(&w->contexts),
               atomic_load(&w->used_bytes), atomic_load(&w->queued_ns), atomic_load(&w->done_ns),
               c->cgroup, roles[atomic_load(&c->mps.role) % 4]);
    }
}

int cmd_status(int argc, char **argv) {
    (void)argv;
    if (argc) return fail("status takes no arguments");
    struct sim_state *s = must_open();
    sim_lock(s);
    sim_reap(s);
    uint64_t now = sim_now();
    for (unsigned d = 0; d < s->device_count; d++) {
        sim_lock_device(s, d);
        sim_advance(s, d, now);
        sim_unlock_device(s, d);
    }
    printf("driver version=%s nvml=%s cuda=%d now_ns=%" PRIu64 "\n", s->driver_version,
           s->nvml_version, s->cuda_version, now);
    for (unsigned d = 0; d < s->device_count; d++) print_device(s, d);
    for (unsigned c = 0; c < SIM_MAX_CLIENTS; c++)
        if (atomic_load(&s->clients[c].in_use)) print_client(s, c);
    for (unsigned l = 0; l < SIM_MAX_LIMITS; l++)
        for (unsigned d = 0; atomic_load(&s->limits[l].in_use) && d < s->device_count; d++)
            printf("limit device=%u soft=%" PRIu64 " hard=%" PRIu64 " used=%" PRIu64 " cgroup=%s\n", d,
                   atomic_load(&s->limits[l].soft[d]), atomic_load(&s->limits[l].hard[d]),
                   sim_limit_used(s, l, d), s->limits[l].path);
    sim_unlock(s);
    return 0;
}
