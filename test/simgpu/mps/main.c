// SPDX-License-Identifier: Apache-2.0
//
// nvidia-cuda-mps-control: the control daemon of the simulated multi-process
// service, and the command line that talks to it.
//
//   nvidia-cuda-mps-control -d | -f [-m] [-p 2]   the daemon, in the back or front
//   nvidia-cuda-mps-control                       commands from the standard input
//
// Invariant: -d returns when the daemon can be talked to, or with the reason why
// there is none.
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
    {"multiuser-server", no_argument, NULL, 'm'},
    {"version", no_argument, NULL, 'v'},
    {NULL, 0, NULL, 0},
};

static int usage(FILE *to) {
    fputs("usage: nvidia-cuda-mps-control [-d | -f] [-m]\n\n"
          "  -d, --daemon            start the daemon in the background\n"
          "  -f, --foreground        start the daemon in the foreground\n"
          "  -m, -multiuser-server   one server for the clients of all users\n"
          "  -v, --version           print the version\n"
          "Without -d and -f, commands are read from the standard input.\n",
          to);
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
    snprintf(mps.dir, sizeof mps.dir, "%s", dir && *dir ? dir : "/tmp/nvidia-mps");
    snprintf(mps.log_dir, sizeof mps.log_dir, "%s", logs && *logs ? logs : "/var/log/nvidia-mps");
}

int main(int argc, char **argv) {
    bool back = false, version = false;
    mps.s = sim_open();
    mps.protocol = 2;
    set_folders();
    for (int opt; (opt = getopt_long_only(argc, argv, "hdfmv", options, NULL)) != -1;) {
        switch (opt) {
            case 'h': return usage(stdout);
            case 'd': back = true; break;
            case 'f': mps.foreground = true; break;
            case 'm': mps.multiuser = true; break;
            case 'v': version = true; break;
            default: return usage(stderr);
        }
    }
    if (optind < argc) return usage(stderr);
    if (version) {
        printf("CUDA MPS Control binary version: %d\n", mps.s ? mps.s->cuda_version : 0);
        return 0;
    }
    if (!back && !mps.foreground) return cli_lines(mps.dir);
    if (!mps.s) {
        fprintf(stderr, "No simulated machine at %s: make one with 'simgpuctl create'\n", sim_path());
        return 1;
    }
    return back ? in_back() : daemon_main(STDERR_FILENO);
}
