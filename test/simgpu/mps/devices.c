// SPDX-License-Identifier: Apache-2.0
//
// devices.c: the devices of a daemon and its servers, and how they are named.
//
// Invariant: an ordinal counts in the order of CUDA_VISIBLE_DEVICES; a UUID may be
// cut short. A device in MIG mode is none of MPS's here.
#define _GNU_SOURCE
#include "mps.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void device_uuid(struct sim_state *s, unsigned dev, char *text, size_t length) {
    sim_uuid_text(text, length, "GPU", s->devices[dev].uuid);
}

// device_named finds name in the list and gives its index in the state file; -1
// when it means none.
int device_named(struct sim_state *s, const unsigned list[], unsigned n, const char *name) {
    char uuid[64], *end;
    unsigned long at = strtoul(name, &end, 10);
    if (end != name && !*end) return at < n ? (int)list[at] : -1;
    for (unsigned i = 0; i < n && strlen(name) > 4; i++) {
        device_uuid(s, list[i], uuid, sizeof uuid);
        if (strncasecmp(uuid, name, strlen(name)) == 0) return (int)list[i];
    }
    return -1;
}

// devices_of lists what a value of CUDA_VISIBLE_DEVICES lets through; NULL is all.
unsigned devices_of(struct sim_state *s, const char *visible, unsigned list[SIM_MAX_DEVICES]) {
    unsigned all[SIM_MAX_DEVICES], n = 0, count = 0;
    char names[1024], *rest = names, *name;
    for (unsigned d = 0; d < s->device_count; d++)
        if (!atomic_load(&s->devices[d].lost) && !atomic_load(&s->devices[d].mig_current) &&
            sim_device_permitted(s, d))
            all[n++] = d;
    if (!visible) {
        memcpy(list, all, n * sizeof *all);
        return n;
    }
    snprintf(names, sizeof names, "%s", visible);
    while ((name = strsep(&rest, ",")) && count < SIM_MAX_DEVICES) {
        int dev = device_named(s, all, n, name);
        if (dev < 0) break;
        list[count++] = (unsigned)dev;
    }
    return count;
}

// size_text writes an amount as mps_size reads it, in its greatest whole unit.
void size_text(uint64_t bytes, char *text, size_t length) {
    if (bytes >> 30 && !(bytes & ((1u << 30) - 1)))
        snprintf(text, length, "%" PRIu64 "G", bytes >> 30);
    else if (bytes >> 20 && !(bytes & ((1u << 20) - 1)))
        snprintf(text, length, "%" PRIu64 "M", bytes >> 20);
    else
        snprintf(text, length, "%" PRIu64 "K", bytes >> 10);
}
