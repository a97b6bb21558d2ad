// SPDX-License-Identifier: Apache-2.0
//
// cgroup.c: which cgroup v2 a process is in, and whether a limit covers it.
//
// Invariants:
// - A cgroup is known by its kernel id (the inode of its directory), which is
//   the same in every namespace; where a container mounts no cgroup2 file
//   system, by its path, which is the host's unless the container has a cgroup
//   namespace of its own.
// - A limit covers its cgroup and everything below it.
// - The unified hierarchy counts as cgroup v2 also on a hybrid machine.
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};

static const char *mounted_at(void) {
    for (unsigned i = 0; i < sizeof mounts / sizeof *mounts; i++) {
        struct statfs fs;
        if (statfs(mounts[i], &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC) return mounts[i];
    }
    return NULL;
}

// sim_cgroup_self fills in this process's cgroup v2 path and, where the file
// system is mounted, the ids from its cgroup up to the root.
void sim_cgroup_self(char *path, size_t len, uint64_t ids[SIM_MAX_CGROUP_DEPTH]) {
    char line[600], full[1200];
    memset(path, 0, len);
    memset(ids, 0, SIM_MAX_CGROUP_DEPTH * sizeof *ids);
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "0::", 3) == 0) snprintf(path, len, "%s", line + 3);
    }
    fclose(f);
    const char *mount = mounted_at();
    if (!mount || !*path) return;
    snprintf(full, sizeof full, "%s%s", mount, strcmp(path, "/") ? path : "");
    for (unsigned n = 0; n < SIM_MAX_CGROUP_DEPTH; n++) {
        struct stat st;
        if (stat(full, &st) < 0) return;
        ids[n] = st.st_ino;
        char *slash = strrchr(full, '/');
        if (strlen(full) <= strlen(mount) || !slash) return;
        *slash = 0;
    }
}

// sim_cgroup_open checks that path is a cgroup v2 directory and gives its id;
// -1 when it cannot be opened, 1 when it is something else.
int sim_cgroup_open(const char *path, uint64_t *id) {
    struct statfs fs;
    struct stat st;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -1;
    int ok = fstatfs(fd, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC && fstat(fd, &st) == 0;
    close(fd);
    if (!ok) return 1;
    *id = st.st_ino;
    return 0;
}

bool sim_cgroup_covers(const struct sim_limit *l, const struct sim_client *c) {
    for (unsigned n = 0; n < SIM_MAX_CGROUP_DEPTH && c->cgroup_ids[n]; n++)
        if (c->cgroup_ids[n] == l->cgroup_id) return true;
    if (c->cgroup_ids[0]) return false;
    const char *below = l->path;
    for (unsigned i = 0; i < sizeof mounts / sizeof *mounts; i++) {
        size_t n = strlen(mounts[i]);
        if (strncmp(l->path, mounts[i], n) == 0 && l->path[n] == '/') below = l->path + n;
    }
    size_t n = strlen(below);
    while (n > 1 && below[n - 1] == '/') n--;
    return n > 1 && strncmp(c->cgroup, below, n) == 0 && (c->cgroup[n] == 0 || c->cgroup[n] == '/');
}
