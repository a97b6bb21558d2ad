// SPDX-License-Identifier: Apache-2.0
//
// main.c: simgpuctl, the hands on the simulated GPUs: makes a state file, shows
// it, and breaks things on purpose.
//
// Invariant: the state file is the one that SIMGPU_STATE names (default
// /run/simgpu/state), as for the libraries.
#define _GNU_SOURCE
#include "ctl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name, *args, *what;
    int (*run)(int, char **);
} commands[] = {
    {"create", "[--driver VERSION] [--seed TEXT] [--context-mib N] [--profile h100-vm]\n"
     "      --gpu MODEL[,count=N][,numa=N][,pcie=HOSTBRIDGE[.SWITCH]...][,switch=N][,fabric=CLUSTERUUID.CLIQUE][,mig=1|,serial=1]...\n"
     "      [--bridge A-B]... | --template hgx-h100-8|a100-bridged-4|l40s-8",
     "make a new state file; running processes keep the old one", cmd_create},
    {"status", "", "print devices, clients and limits, one key=value line each", cmd_status},
    {"xid", "DEVICE CODE [GPU-INSTANCE]", "raise an Xid event", cmd_xid},
    {"ecc", "DEVICE corrected|uncorrected [COUNT]", "count ECC errors and raise the event", cmd_ecc},
    {"lose", "DEVICE", "drop the device off the bus (Xid 79)", cmd_lose},
    {"recover", "DEVICE", "bring a lost device back", cmd_recover},
    {"links", "DEVICE up|down", "bring a device's NVLinks down, or up again", cmd_links},
    {"mps", "DEVICE FAULT [VALUE]",
     "plant a fault in the device's MPS: crash, server-crash, fault [PID]; refuse, ignore, hang,\n"
     "      no-start on|off; slow MS", cmd_mps},
    {"stretch", "DEVICE PERCENT",
     "let work that comes take so many percent of its time: 150 is half as long again", cmd_stretch},
    {"gpm", "DEVICE METRIC VALUE", "set what NVML's GPM says of a metric, by its number in nvml.h", cmd_gpm},
    {"replace", "DEVICE", "put another piece of hardware in its place: a new UUID", cmd_replace},
    {"module", "VERSION", "load another version of the kernel module than the library's", cmd_module},
    {"driver-root", "DIR [--devices N] [--libs DIR] [--mig]",
     "lay out driver libraries and device nodes for container tools", cmd_driver_root},
};

int fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("simgpuctl: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return 1;
}

bool number(const char *text, uint64_t max, uint64_t *value) {
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 0);
    if (errno || end == text || *end || *text == '-' || n > max) return false;
    *value = n;
    return true;
}

struct sim_state *must_open(void) {
    struct sim_state *s = sim_open();
    if (!s) {
        fail("no state file of this version at %s: make one with 'simgpuctl create' or set "
             "SIMGPU_STATE",
             sim_path());
        exit(1);
    }
    return s;
}

int device_arg(struct sim_state *s, const char *text) {
    uint64_t n;
    char uuid[64];
    for (unsigned d = 0; d < s->device_count; d++) {
        sim_uuid_text(uuid, sizeof uuid, "GPU", s->devices[d].uuid);
        if (strcasecmp(uuid, text) == 0) return (int)d;
    }
    if (number(text, s->device_count ? s->device_count - 1 : 0, &n) && s->device_count)
        return (int)n;
    fail("no device %s: give an index below %u or a UUID from 'simgpuctl status'", text,
         s->device_count);
    return -1;
}

static int usage(FILE *to) {
    fputs("usage: simgpuctl COMMAND ...\n\n", to);
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  %s %s\n      %s\n", commands[i].name, commands[i].args, commands[i].what);
    fputs("\nmodels:", to);
    for (unsigned i = 0; sim_model_at(i); i++) fprintf(to, " %s", sim_model_at(i)->key);
    fputs("\nDEVICE is an index or a UUID; the state file is $SIMGPU_STATE, else "
          "/run/simgpu/state\n",
          to);
    return to == stdout ? 0 : 2;
}

int main(int argc, char **argv) {
    if (argc < 2) return usage(stderr);
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0) return usage(stdout);
    for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 2, argv + 2);
    fail("unknown command %s", argv[1]);
    return usage(stderr);
}
