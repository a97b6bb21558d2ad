// SPDX-License-Identifier: Apache-2.0
//
// driver_root.c: simgpuctl driver-root: a folder that container tools take for
// the root of an installed driver.
//
//   DIR/usr/lib/x86_64-linux-gnu/libcuda.so.VERSION, .so.1, .so (and NVML's)
//   DIR/dev/nvidia0…, nvidiactl, nvidia-uvm, nvidia-uvm-tools, nvidia-modeset
//   DIR/usr/bin/nvidia-cuda-mps-control, nvidia-cuda-mps-server
//   with --mig: DIR/dev/nvidia-caps/nvidia-cap*, DIR/proc/driver/nvidia-caps/mig-minors
//
// Invariants:
// - Laying out the same root again changes nothing that is already right.
// - A driver older than branch 615 gets the library without its symbols.
#define _GNU_SOURCE
#include "ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { NVIDIA = 195, UVM = 511, CAPS = 510 };

static char dir[2048];

static bool make_dirs(const char *below) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, below);
    for (char *p = path + 1; *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        if (mkdir(path, 0755) < 0 && errno != EEXIST) return false;
        *p = '/';
    }
    return mkdir(path, 0755) == 0 || errno == EEXIST;
}

static bool node(const char *name, unsigned major, unsigned minor) {
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/dev/%s", dir, name);
    dev_t want = makedev(major, minor);
    if (lstat(path, &st) == 0) {
        if (S_ISCHR(st.st_mode) && st.st_rdev == want) return true;
        unlink(path);
    }
    return mknod(path, S_IFCHR | 0666, want) == 0 && chmod(path, 0666) == 0;
}

static bool copy(const char *from, const char *to) {
    char buffer[65536], aside[4200];
    snprintf(aside, sizeof aside, "%s.new", to);
    FILE *in = fopen(from, "re"), *out = in ? fopen(aside, "we") : NULL;
    bool ok = in && out;
    for (size_t n; ok && (n = fread(buffer, 1, sizeof buffer, in)) > 0;)
        ok = fwrite(buffer, 1, n, out) == n;
    if (in) fclose(in);
    if (out) ok = fclose(out) == 0 && ok;
    return ok && chmod(aside, 0755) == 0 && rename(aside, to) == 0;
}

static bool point(const char *to, const char *at) {
    unlink(at);
    return symlink(to, at) == 0;
}

// install puts name.so.VERSION and its links in place.
static bool install(const char *from, const char *name, const char *version) {
    char base[3072], real[4096], soname[4096], plain[4096], file[256];
    snprintf(base, sizeof base, "%s/usr/lib/x86_64-linux-gnu", dir);
    snprintf(file, sizeof file, "%s.so.%s", name, version);
    snprintf(real, sizeof real, "%s/%s", base, file);
    snprintf(soname, sizeof soname, "%s/%s.so.1", base, name);
    snprintf(plain, sizeof plain, "%s/%s.so", base, name);
    char target[256];
    snprintf(target, sizeof target, "%s.so.1", name);
    return copy(from, real) && point(file, soname) && point(target, plain);
}

// install_mps copies the programs of the multi-process service, which a folder of
// libraries alone may lack.
static bool install_mps(const char *libs) {
    static const char *const names[] = {"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"};
    char from[4096], to[4096];
    if (!make_dirs("usr/bin")) return false;
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(from, sizeof from, "%s/%s", libs, names[i]);
        snprintf(to, sizeof to, "%s/usr/bin/%s", dir, names[i]);
        if (access(from, R_OK) == 0 && !copy(from, to)) return false;
    }
    return true;
}

static bool mig_nodes(unsigned devices) {
    char path[4096], name[64];
    if (!make_dirs("dev/nvidia-caps") || !make_dirs("proc/driver/nvidia-caps")) return false;
    snprintf(path, sizeof path, "%s/proc/driver/nvidia-caps/mig-minors", dir);
    FILE *f = fopen(path, "we");
    if (!f) return false;
    fputs("config 1\nmonitor 2\n", f);
    bool ok = node("nvidia-caps/nvidia-cap1", CAPS, 1) && node("nvidia-caps/nvidia-cap2", CAPS, 2);
    for (unsigned g = 0; g < devices; g++)
        for (unsigned gi = 0; gi < 15; gi++)
            for (int ci = -1; ci < 8; ci++) {
                int minor = sim_cap_minor(g, gi, ci);
                if (ci < 0)
                    fprintf(f, "gpu%u/gi%u/access %d\n", g, gi, minor);
                else
                    fprintf(f, "gpu%u/gi%u/ci%d/access %d\n", g, gi, ci, minor);
                snprintf(name, sizeof name, "nvidia-caps/nvidia-cap%d", minor);
                ok = ok && node(name, CAPS, (unsigned)minor);
            }
    return fclose(f) == 0 && ok;
}

int cmd_driver_root(int argc, char **argv) {
    struct sim_state *s = must_open();
    uint64_t devices = s->device_count;
    bool mig = false;
    char libs[2048] = "", nvml[4096], cuda[4096], name[32];
    ssize_t n = readlink("/proc/self/exe", libs, sizeof libs - 1);
    if (n > 0) libs[n] = 0, dirname(libs);
    if (argc < 1 || argv[0][0] == '-')
        return fail("usage: simgpuctl driver-root DIR [--devices N] [--libs DIR] [--mig]");
    snprintf(dir, sizeof dir, "%s", argv[0]);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mig") == 0)
            mig = true;
        else if (i + 1 < argc && strcmp(argv[i], "--libs") == 0)
            snprintf(libs, sizeof libs, "%s", argv[++i]);
        else if (i + 1 < argc && strcmp(argv[i], "--devices") == 0 &&
                 number(argv[i + 1], SIM_MAX_DEVICES, &devices))
            i++;
        else
            return fail("driver-root: %s: unknown, or without its value", argv[i]);
    }
    bool old = strtoul(s->driver_version, NULL, 10) < 615;
    snprintf(nvml, sizeof nvml, "%s%s/libnvidia-ml.so.1", libs, old ? "/535" : "");
    snprintf(cuda, sizeof cuda, "%s/libcuda.so.1", libs);
    if (!make_dirs("dev") || !make_dirs("usr/lib/x86_64-linux-gnu"))
        return fail("cannot make folders below %s: %s", dir, strerror(errno));
    if (!install(nvml, "libnvidia-ml", s->driver_version) ||
        !install(cuda, "libcuda", s->driver_version) || !install_mps(libs))
        return fail("cannot copy the libraries from %s: %s (build them with make -C test/simgpu)",
                    libs, strerror(errno));
    bool ok = node("nvidiactl", NVIDIA, 255) && node("nvidia-modeset", NVIDIA, 254) &&
              node("nvidia-uvm", UVM, 0) && node("nvidia-uvm-tools", UVM, 1);
    for (unsigned d = 0; ok && d < devices; d++) {
        snprintf(name, sizeof name, "nvidia%u", d);
        ok = node(name, NVIDIA, d);
    }
    if (!ok || (mig && !mig_nodes((unsigned)devices)))
        return fail("cannot make device nodes below %s/dev: %s (needs root and a file system "
                    "mounted without nodev)",
                    dir, strerror(errno));
    return 0;
}
