// SPDX-License-Identifier: Apache-2.0
//
// cli.c: nvidia-cuda-mps-control without -d or -f: hands commands to the daemon.
//
// Invariants:
// - Lines of the standard input go one by one, each after the reply to the one
//   before. An error is in the reply's text, if it is anywhere; the exit status tells
//   only whether there is a daemon, and after "quit" how it has ended.
// - A command of protocol 3 is one packet: its words, each with a 0 behind. An error
//   goes to standard error, with exit status 1.
#define _GNU_SOURCE
#include "mps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char packet[MPS_PACKET + 1];

static int dial(const char *dir, const char *name) {
    int fd = mps_dial(dir, name);
    if (fd < 0) fprintf(stderr, "Cannot find MPS control daemon process\n");
    return fd;
}

// cli_command sends a command of protocol 3.
int cli_command(const char *dir, int argc, char **argv) {
    size_t length = 0;
    ssize_t n;
    int fd = dial(dir, "control");
    if (fd < 0) return 1;
    for (int i = 0; i < argc; i++) {
        size_t word = strlen(argv[i]) + 1;
        if (length + word > sizeof packet) return 1;
        memcpy(packet + length, argv[i], word);
        length += word;
    }
    bool quit = strcmp(argv[0], "quit") == 0;
    if (send(fd, packet, length, MSG_NOSIGNAL) < 0) return 1;
    while ((n = recv(fd, packet, MPS_PACKET, 0)) < 0 && errno == EINTR) {
    }
    close(fd);
    if (n <= 0) return !quit;  // the daemon's end is the answer to quit
    bool bad = packet[0] == '1';
    fwrite(packet + 1, 1, (size_t)n - 1, bad ? stderr : stdout);
    return bad;
}

int cli_lines(const char *dir) {
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int fd = dial(dir, "control_privileged");
    if (fd < 0) return 1;
    while ((n = getline(&line, &room, stdin)) > 0) {
        bool quit = strncmp(line, "quit", 4) == 0;
        if (send(fd, line, (size_t)n, MSG_NOSIGNAL) != n) break;
        while ((n = recv(fd, packet, MPS_PACKET, 0)) < 0 && errno == EINTR) {
        }
        if (quit) return n == 1 && packet[0] == '1';  // how the daemon has ended
        if (n <= 0) {
            fprintf(stderr, "Lost the connection to the MPS control daemon\n");
            return 1;
        }
        fwrite(packet + 1, 1, (size_t)n - 1, stdout);
        fflush(stdout);
    }
    free(line);
    close(fd);
    return 0;
}
