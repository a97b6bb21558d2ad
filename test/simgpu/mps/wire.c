// SPDX-License-Identifier: Apache-2.0
//
// wire.c: see wire.h.
#define _GNU_SOURCE
#include "wire.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

int mps_dial(const char *dir, const char *name) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (snprintf(at.sun_path, sizeof at.sun_path, "%s/%s", dir, name) >= (int)sizeof at.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

bool mps_mark_of(struct mps_mark *mark, uint32_t slot, uint32_t generation) {
    struct stat state;
    memset(mark, 0, sizeof *mark);
    if (stat(sim_path(), &state) < 0) return false;
    mark->device = state.st_dev;
    mark->inode = state.st_ino;
    mark->slot = slot;
    mark->generation = generation;
    return true;
}

void mps_unshare(const char *name) {
    char path[128];
    snprintf(path, sizeof path, MPS_SHARED "/%s", name);
    if (*name) unlink(path);
}

bool mps_size(const char *text, uint64_t *bytes) {
    char *end;
    if (!isdigit((unsigned char)*text)) return false;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    unsigned shift = 0;
    switch (toupper((unsigned char)*end)) {
        case 'G': shift = 30; break;
        case 'M': shift = 20; break;
        case 'K': shift = 10; break;
        default: return false;
    }
    end++;
    if (toupper((unsigned char)*end) == 'B') end++;
    if (errno || *end || !n || n > UINT64_MAX >> shift) return false;
    *bytes = (uint64_t)n << shift;
    return true;
}

int mps_next_limit(char **rest, char **device, uint64_t *bytes) {
    if (!*rest || !**rest) return 0;
    char *entry = strsep(rest, ",");
    *device = strsep(&entry, "=");
    return entry && **device && mps_size(entry, bytes) ? 1 : -1;
}

bool mps_percent(const char *text, double *percent) {
    char *end;
    double p = strtod(text, &end);
    if (end == text || *end || !(p > 0 && p <= 100)) return false;
    *percent = p;
    return true;
}
