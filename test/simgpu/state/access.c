// SPDX-License-Identifier: Apache-2.0
//
// access.c: which devices this process may use, decided as the kernel decides
// it: by opening the device node.
//
// Invariants:
// - Opening /dev/nvidiaN, or being told ENXIO (the node is there and allowed,
//   only no driver stands behind it), means permitted. No node, or one that the
//   device cgroup refuses, means that the device does not exist here.
// - SIMGPU_DEVROOT moves /dev; SIMGPU_ALL_DEVICES=1 skips the check, for
//   machines and tests that have no device nodes.
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool opens(const char *node) {
    char path[4096];
    const char *root = getenv("SIMGPU_DEVROOT");
    const char *all = getenv("SIMGPU_ALL_DEVICES");
    if (all && strcmp(all, "1") == 0) return true;
    if (!root || strcmp(root, "/") == 0) root = "";
    if (snprintf(path, sizeof path, "%s/dev/%s", root, node) >= (int)sizeof path) return false;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return errno == ENXIO || errno == ENODEV;
    close(fd);
    return true;
}

bool sim_device_permitted(const struct sim_state *s, unsigned dev) {
    char node[32];
    snprintf(node, sizeof node, "nvidia%u", s->devices[dev].minor);
    return opens(node);
}

// sim_cap_minor numbers the capability nodes as the real driver does: 135 per
// GPU, 9 per GPU instance (its own, then up to 8 compute instances), from 3 on.
// ci < 0 asks for the GPU instance's own node.
int sim_cap_minor(unsigned dev_minor, unsigned gi, int ci) {
    return 3 + (int)dev_minor * 135 + (int)gi * 9 + (ci < 0 ? 0 : ci + 1);
}

bool sim_instance_permitted(const struct sim_state *s, unsigned dev, unsigned gi, unsigned ci) {
    char node[64];
    unsigned minor = s->devices[dev].minor;
    snprintf(node, sizeof node, "nvidia-caps/nvidia-cap%d", sim_cap_minor(minor, gi, -1));
    if (!opens(node)) return false;
    snprintf(node, sizeof node, "nvidia-caps/nvidia-cap%d", sim_cap_minor(minor, gi, (int)ci));
    return opens(node);
}
