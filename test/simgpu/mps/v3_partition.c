// SPDX-License-Identifier: Apache-2.0
//
// v3_partition.c: SM partitions: SMs that only the clients which name the partition
// run on.
//
// Invariants:
// - Partitions of a device never add up to more SMs than it has, over all servers.
// - One that is made while its server doesn't run is made in the device when it does,
//   and again when it is started anew.
// - A device with clients is not partitioned, and none with partitions used freed.
#define _GNU_SOURCE
#include "mps.h"

#include <stdlib.h>
#include <string.h>

// chunk_sms is the unit of partitions: 8 SMs from Hopper on, before it 2.
unsigned chunk_sms(unsigned dev) {
    const struct sim_model *m = sim_model(mps.s->devices[dev].model);
    return m && m->major >= 9 ? 8 : 2;
}

static unsigned free_sms(unsigned dev) {
    struct sim_device *d = &mps.s->devices[dev];
    const struct sim_model *m = sim_model(d->model);
    unsigned sms = m ? m->sms : 0;
    for (unsigned i = 0; i < atomic_load(&d->partition_high); i++)
        if (d->partitions[i].used) sms -= d->partitions[i].sms;
    return sms;
}

// carve makes a partition in the device; the caller holds its locks.
static bool carve(struct server *v, struct partition *p) {
    struct sim_device *d = &mps.s->devices[p->dev];
    unsigned sms = p->chunks * chunk_sms(p->dev), left = free_sms(p->dev), i = 0;
    if (sms > left) return false;
    if (p->remainder && left - sms < chunk_sms(p->dev)) sms = left;
    while (i < SIM_MAX_PARTITIONS && d->partitions[i].used) i++;
    if (i == SIM_MAX_PARTITIONS) return false;
    sim_advance(mps.s, p->dev, sim_now());
    struct sim_partition *made = &d->partitions[i];
    *made = (struct sim_partition){.sms = sms, .chunks = p->chunks, .server = v->slot,
                                   .generation = v->generation};
    memcpy(made->name, p->name, sizeof made->name);
    snprintf(made->id, sizeof made->id, "%c%c8AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
             'A' + (int)(v->slot % 26), 'a' + (int)(i % 26));
    made->used = 1;
    if (i >= atomic_load(&d->partition_high)) atomic_store(&d->partition_high, i + 1);
    memcpy(p->id, made->id, sizeof p->id);
    p->sms = sms;
    return p->created = true;
}

static bool carve_locked(struct server *v, struct partition *p) {
    sim_lock(mps.s);
    sim_reap(mps.s);
    sim_lock_device(mps.s, p->dev);
    bool made = carve(v, p);
    sim_unlock_device(mps.s, p->dev);
    sim_unlock(mps.s);
    return made;
}

// partitions_apply makes what was asked for before the server ran.
void partitions_apply(struct server *v) {
    for (struct partition *p = v->partitions; p < v->partitions + SIM_MAX_PARTITIONS; p++)
        if (p->used && !p->created && !carve_locked(v, p))
            log_line("SM partition '%s' does not fit", p->name);
}

static bool in_use(struct server *v, unsigned dev) {
    struct sim_client *slot = server_slot(v);
    if (!slot) return false;
    sim_lock(mps.s);
    sim_reap(mps.s);
    bool any = sim_mps_contexts(mps.s, slot, dev) > 0;
    sim_unlock(mps.s);
    return any;
}

static struct partition *find(struct server *v, unsigned dev, const char *name) {
    for (struct partition *p = v->partitions; p < v->partitions + SIM_MAX_PARTITIONS; p++)
        if (p->used && p->dev == dev && strcmp(p->name, name) == 0) return p;
    return NULL;
}

static void create(struct server *v, unsigned dev, const struct args *a, struct reply *r) {
    const struct sim_model *m = sim_model(mps.s->devices[dev].model);
    const char *chunks = option(a, "chunks"), *remainder = option(a, "include-remainder");
    char uuid[64];
    int n = chunks ? atoi(chunks) : 0;
    struct partition *p = v->partitions;
    while (p < v->partitions + SIM_MAX_PARTITIONS && p->used) p++;
    device_uuid(mps.s, dev, uuid, sizeof uuid);
    if (!good_name(a->words[0], r)) return;
    if (n <= 0 || n > 1000 || find(v, dev, a->words[0]) || p == v->partitions + SIM_MAX_PARTITIONS) {
        refuse(r, n <= 0 || n > 1000 ? "--chunks must be a positive integer"
                                     : "SM partition '%s' already exists", a->words[0]);
        return;
    }
    if (!m || m->major < 8) {
        refuse(r, "Device %s does not support SM partitions", uuid);
        return;
    }
    if (in_use(v, dev)) {
        refuse(r, "Device %s has active clients", uuid);
        return;
    }
    *p = (struct partition){.used = true, .dev = dev, .chunks = (unsigned)n,
                            .remainder = remainder && strcmp(remainder, "true") == 0};
    snprintf(p->name, sizeof p->name, "%s", a->words[0]);
    if (!server_slot(v)) {
        say(r, "SM partition '%s' configured on device %s\n", p->name, uuid);
    } else if (carve_locked(v, p)) {
        say(r, "SM partition '%s' created on device %s (sm-count=%u)\nCUDA_MPS_SM_PARTITION=%s/%s\n",
            p->name, uuid, p->sms, uuid, p->id);
    } else {
        p->used = false;
        refuse(r, "Failed to fulfill the requested SM partition of %d chunks, error "
                  "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", n);
    }
}

static void delete(struct server *v, unsigned dev, const struct args *a, struct reply *r) {
    struct sim_device *d = &mps.s->devices[dev];
    struct partition *p = a->words[0] ? find(v, dev, a->words[0]) : NULL;
    char uuid[64];
    device_uuid(mps.s, dev, uuid, sizeof uuid);
    if (!p || in_use(v, dev)) {
        refuse(r, p ? "SM partition '%s' has active clients" : "SM partition '%s' not found",
               a->words[0] ? a->words[0] : "");
        return;
    }
    sim_lock(mps.s);
    sim_lock_device(mps.s, dev);
    for (unsigned i = 0; p->created && i < atomic_load(&d->partition_high); i++)
        if (d->partitions[i].used && strcmp(d->partitions[i].id, p->id) == 0) d->partitions[i].used = 0;
    sim_unlock_device(mps.s, dev);
    sim_unlock(mps.s);
    say(r, "SM partition '%s' deleted from device %s\n", p->name, uuid);
    p->used = false;
}

static void row(struct table *t, struct server *v, const char *uuid, const struct partition *p) {
    char chunks[16], sms[16];
    snprintf(chunks, sizeof chunks, "%u", p->chunks);
    snprintf(sms, sizeof sms, "%u", p->sms);
    if (p->used)
        table_row(t, (const char *[]){v->name, uuid, p->name, chunks, p->created ? sms : "-",
                                      p->remainder ? "true" : "false",
                                      p->created ? "created" : "configured", p->created ? p->id : "-"});
    else
        table_row(t, (const char *[]){v->name, uuid, "-", chunks, sms, "-", "unallocated", "-"});
}

static void list(const struct args *a, struct reply *r) {
    static const char *const names[] = {"SERVER", "DEVICE", "NAME", "CHUNKS", "SM-COUNT",
                                        "INCLUDE-REMAINDER", "STATUS", "VISIBLE-UUID"};
    static const unsigned widths[] = {16, 40, 16, 6, 8, 17, 11, 40};
    struct table t;
    const char *of = option(a, "server"), *on = option(a, "device");
    if ((of && !server_named(of, r)) || !table_begin(&t, a, r, names, widths, 8)) return;
    for (struct server *v = mps.servers; v < mps.servers + MPS_SERVERS; v++) {
        if (!v->used || v->deleted || (of && strcmp(v->name, of) != 0)) continue;
        for (unsigned i = 0; i < v->device_count; i++) {
            unsigned dev = v->devices[i], left = free_sms(dev);
            char uuid[64];
            if (on && device_named(mps.s, v->devices, v->device_count, on) != (int)dev) continue;
            device_uuid(mps.s, dev, uuid, sizeof uuid);
            for (struct partition *p = v->partitions; p < v->partitions + SIM_MAX_PARTITIONS; p++)
                if (p->used && p->dev == dev) row(&t, v, uuid, p);
            struct partition rest = {.chunks = left / chunk_sms(dev), .sms = left};
            if (left) row(&t, v, uuid, &rest);
        }
    }
}

void v3_partition(const char *verb, const struct args *a, struct reply *r) {
    if (strcmp(verb, "list") == 0) {
        list(a, r);
        return;
    }
    struct server *v = server_named(option(a, "server"), r);
    const char *device = option(a, "device");
    int dev = v && device ? device_named(mps.s, v->devices, v->device_count, device) : -1;
    if (!v) return;
    if (dev < 0) {
        refuse(r, "Device '%s' not found on server '%s'", device ? device : "", v->name);
        return;
    }
    if (!owns(v, a, strcmp(verb, "create") == 0 ? "SM-PARTITION CREATE" : "SM-PARTITION DELETE", r)) return;
    if (strcmp(verb, "create") == 0) create(v, (unsigned)dev, a, r);
    else delete(v, (unsigned)dev, a, r);
}
