// SPDX-License-Identifier: Apache-2.0
//
// legacy_limits.c: the limits of the legacy interface: thread percentages and pinned
// memory, of servers yet to start and of one that runs.
//
// Invariants:
// - A limit holds for servers yet to start (the defaults) or for clients yet to
//   come (a server's); who runs already keeps what he has.
// - A planted refusal or deafness hits the commands that set limits, no others.
#define _GNU_SOURCE
#include "mps.h"

#include <stdlib.h>
#include <string.h>

// may_set asks the planted faults whether a limit may be set: refused says so, and
// one that is ignored does not.
bool may_set(struct reply *r, const char *what) {
    if (sim_planted(mps.s, mps.mask, SIM_REFUSE)) {
        refuse(r, "Failed to %s", what);
        return false;
    }
    return !sim_planted(mps.s, mps.mask, SIM_IGNORE);
}

// set_percent puts a percentage where it belongs and tells what holds now, which is
// what held before if this is none. What follows the number is not looked at.
static void set_percent(double *at, const char *text, struct reply *r) {
    double percent = text ? strtod(text, NULL) : 0;
    if (!(percent > 0 && percent <= 100)) {
        log_line("Invalid percentage, expected between (0.0, 100.0]");
        percent = *at;
    } else if (may_set(r, "set the active thread percentage")) {
        *at = percent;
    }
    if (!r->bad) say(r, "%.1f\n", percent);
}

void legacy_set_default_percent(char **w, struct reply *r) { set_percent(&mps.percent, w[1], r); }

void legacy_get_default_percent(char **w, struct reply *r) {
    (void)w;
    say(r, "%.1f\n", mps.percent);
}

void legacy_set_server_percent(char **w, struct reply *r) {
    struct server *v = legacy_server(w[1], r);
    if (v) set_percent(&v->spaces[0].percent, w[2], r);
}

void legacy_get_server_percent(char **w, struct reply *r) {
    struct server *v = legacy_server(w[1], r);
    if (v) say(r, "%.1f\n", v->spaces[0].percent);
}

// print_limit writes whole GiB where there is one, and what is beyond them is lost.
static void print_limit(uint64_t bytes, struct reply *r) {
    uint64_t mib = bytes >> 20;
    if (mib >= 1024)
        say(r, "%lluG\n", (unsigned long long)(mib >> 10));
    else if (mib)
        say(r, "%lluM\n", (unsigned long long)mib);
}

// limit_of reads an amount: a number and G; MiB with any other letter, or none. What
// is no number is 0, which takes the limit away.
static uint64_t limit_of(const char *text) {
    char *end;
    uint64_t n = text ? strtoull(text, &end, 10) : 0;
    return text && (*end == 'G' || *end == 'g') ? n << 30 : n << 20;
}

// ordinal tells whether a word is a number and nothing else.
static bool ordinal(const char *word) {
    char *end;
    strtol(word, &end, 10);
    return end != word && !*end;
}

// default_name makes of a device the name that its default limit is kept by: false for
// one that there can't be.
static bool default_name(const char *word, char name[64]) {
    if (!word) return false;
    if (!ordinal(word)) {
        snprintf(name, 64, "%s", word);
        return device_named(mps.s, mps.devices, mps.device_count, word) >= 0;
    }
    long at = strtol(word, NULL, 10);
    snprintf(name, 64, "%ld", at);
    return at >= 0 && at < SIM_MAX_DEVICES;
}

// An ordinal that no device can have is passed over; a word that names no device takes
// all limits away.
void legacy_set_default_limit(char **w, struct reply *r) {
    char name[64];
    bool device = default_name(w[1], name);
    uint64_t bytes = limit_of(device ? w[2] : NULL);
    if (!may_set(r, "set the default device pinned memory limit")) return;
    if (!w[1] || (!device && ordinal(w[1]))) return;
    unsigned n = 0;
    for (unsigned i = 0; device && i < mps.default_count; i++)
        if (strcmp(mps.defaults[i].device, name) != 0) mps.defaults[n++] = mps.defaults[i];
    mps.default_count = n;
    if (!bytes || n == MPS_DEFAULTS) return;
    snprintf(mps.defaults[n].device, sizeof mps.defaults[n].device, "%s", name);
    mps.defaults[n].bytes = bytes;
    mps.default_count = n + 1;
}

void legacy_get_default_limit(char **w, struct reply *r) {
    char name[64];
    uint64_t bytes = 0;
    for (unsigned i = 0; default_name(w[1], name) && i < mps.default_count; i++)
        if (strcmp(mps.defaults[i].device, name) == 0) bytes = mps.defaults[i].bytes;
    if (!bytes) log_line("No default pinned memory limit set for the device!");
    print_limit(bytes, r);
}

// server_limit finds where a server keeps the limit of a device.
static uint64_t *server_limit(char **w, struct reply *r) {
    struct server *v = legacy_server(w[1], r);
    if (!v) return NULL;
    int dev = w[2] ? device_named(mps.s, v->devices, v->device_count, w[2]) : -1;
    if (dev < 0) refuse(r, "Invalid device ordinal!");
    return dev < 0 ? NULL : &v->spaces[0].pinned[dev];
}

void legacy_set_server_limit(char **w, struct reply *r) {
    uint64_t *limit = server_limit(w, r);
    if (limit && may_set(r, "set the device pinned memory limit")) *limit = limit_of(w[3]);
}

void legacy_get_server_limit(char **w, struct reply *r) {
    uint64_t *limit = server_limit(w, r);
    if (limit) print_limit(*limit, r);
}
