// SPDX-License-Identifier: Apache-2.0
//
// nvidia-cuda-mps-control: the control daemon of the simulated multi-process
// service, and the command line that talks to it.
//
//   nvidia-cuda-mps-control -d | -f [-m] [-p 2|3]   the daemon, in the back or front
//   nvidia-cuda-mps-control                         commands from the standard input
//   nvidia-cuda-mps-control MODULE VERB …           a command of protocol 3
//
// Invariants:
// - -d returns when the daemon can be talked to, or with the reason why there is none.
// - Protocol 3 came with driver branch 615: an older driver's program knows no -p. The
//   one server for all users is 555's (or of one between it and 550). Where an option is
//   not known, 555 tells its usage, and older ones take it for none with commands to read:
//   then there is no daemon, whatever else the command line has.
#define _GNU_SOURCE
#include "mps.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct option options[] = {
    {"help", no_argument, NULL, 'h'},
    {"daemon", no_argument, NULL, 'd'},
    {"foreground", no_argument, NULL, 'f'},
    {"multiuser", no_argument, NULL, 'm'},
    {"multiuser-server", no_argument, NULL, 'M'},
    {"protocol", required_argument, NULL, 'p'},
    {"quit", no_argument, NULL, 'q'},
    {"version", no_argument, NULL, 'v'},
    {NULL, 0, NULL, 0},
};

unsigned branch(void) { return mps.s ? (unsigned)strtoul(mps.s->driver_version, NULL, 10) : 0; }

static bool newest(void) { return branch() >= 615; }

// known tells whether this driver's program has an option.
static bool known(int opt) {
    return strchr(newest() ? "hdfMmpqv" : branch() >= 555 ? "hdfM" : "hdf", opt);
}

static int usage(FILE *to) {
    fputs("usage: nvidia-cuda-mps-control [-d | -f] [-m]\n\n"
          "  -d, --daemon            start the daemon in the background\n"
          "  -f, --foreground        start the daemon in the foreground\n"
          "  -multiuser-server       one server for the clients of all users\n",
          to);
    if (newest())
        fputs("  -m                      the same\n"
              "  -v, --version           print the version\n"
              "  -p, --protocol 2|3      the interface of the daemon, 2 (legacy) by default\n"
              "  -q, --quit              end the daemon (protocol 3)\n\n"
              "nvidia-cuda-mps-control MODULE VERB [ARGUMENT] [--KEY=VALUE] for a daemon of protocol 3:\n"
              "modules are server, namespace, client, sm-partition.\n",
              to);
    fputs("Without -d and -f, commands are read from the standard input.\n", to);
    return to == stdout ? 0 : 1;
}

// in_back runs the daemon as a child in a session of its own.
static int in_back(void) {
    int fds[2];
    char why[512];
    size_t n = 0;
    if (pipe2(fds, O_CLOEXEC) < 0) return 1;
    pid_t pid = fork();
    if (pid < 0) return 1;
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        setsid();
        for (int i = 0; i < 3; i++) dup2(null, i);
        close(fds[0]);
        _exit(daemon_main(fds[1]));
    }
    close(fds[1]);
    for (ssize_t got; n < sizeof why && (got = read(fds[0], why + n, sizeof why - n)) != 0;) {
        if (got > 0) n += (size_t)got;
        else if (errno != EINTR) break;
    }
    fwrite(why, 1, n, stderr);
    return n ? 1 : 0;
}

static void set_folders(void) {
    const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY"), *logs = getenv("CUDA_MPS_LOG_DIRECTORY");
    const char *standard = mps.protocol == 3 && geteuid() == 0 ? "/run/nvidia-mps" : "/tmp/nvidia-mps";
    snprintf(mps.dir, sizeof mps.dir, "%s", dir && *dir ? dir : standard);
    snprintf(mps.log_dir, sizeof mps.log_dir, "%s", logs && *logs ? logs : "/var/log/nvidia-mps");
}

// set_protocol takes the environment over the flag; false for none there is.
static bool set_protocol(const char *flag) {
    const char *env = newest() ? getenv("CUDA_MPS_PROTOCOL_VERSION") : NULL;
    const char *version = env && *env ? env : flag;
    mps.protocol = strcmp(version, "3") == 0 ? 3 : 2;
    return mps.protocol == 3 || strcmp(version, "2") == 0;
}

// unknown is for what the command line may not have.
static int unknown(void) {
    if (branch() >= 555 || !mps.s) return usage(stderr);
    mps.protocol = 2;
    set_folders();
    return cli_lines(mps.dir);
}

int main(int argc, char **argv) {
    static char quit[] = "quit";
    bool back = false, version = false, end = false;
    const char *protocol = "2";
    mps.s = sim_open();
    opterr = 0;
    for (int opt; (opt = getopt_long_only(argc, argv, "+hdfmp:qv", options, NULL)) != -1;) {
        if (!known(opt)) return unknown();
        switch (opt) {
            case 'h': return usage(stdout);
            case 'd': back = true; break;
            case 'f': mps.foreground = true; break;
            case 'M':
            case 'm': mps.multiuser = true; break;
            case 'p': protocol = optarg; break;
            case 'q': end = true; break;
            case 'v': version = true; break;
        }
    }
    bool newer = optind < argc || end || strcmp(protocol, "2") != 0;
    if (!set_protocol(protocol) || (newer && !newest())) return unknown();
    if (optind < argc || end) mps.protocol = 3;  // for the folder; the daemon has its own
    set_folders();
    if (version) {
        printf("CUDA MPS Control binary version: %d\n", mps.s ? mps.s->cuda_version : 0);
        return 0;
    }
    if (end) return cli_command(mps.dir, 1, (char *[]){quit, NULL});
    if (optind < argc) return cli_command(mps.dir, argc - optind, argv + optind);
    if (!back && !mps.foreground) return cli_lines(mps.dir);
    if (!mps.s) {
        fprintf(stderr, "No simulated machine at %s: make one with 'simgpuctl create'\n", sim_path());
        return 1;
    }
    return back ? in_back() : daemon_main(STDERR_FILENO);
}
