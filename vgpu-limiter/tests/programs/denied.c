// SPDX-License-Identifier: Apache-2.0
//
// denied ERROR CALL[:SECOND]... -- COMMAND: runs a command whose system calls of these
// numbers, or only those with this second argument, fail with the error, as by the
// seccomp profile of a container.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MOST 64

static struct sock_filter filter[6 * MOST];
static unsigned short length;

static void add(unsigned code, unsigned value, unsigned char skipped) {
    filter[length++] = (struct sock_filter){(unsigned short)code, 0, skipped, value};
}

int main(int argc, char **argv) {
    int i = 2;
    for (; i < argc && i < MOST && strcmp(argv[i], "--") != 0; i++) {
        char *second = strchr(argv[i], ':');
        add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0);
        add(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(argv[i]), second != NULL ? 3 : 1);
        if (second != NULL) {
            add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1]), 0);
            add(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(second + 1), 1);
        }
        add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)atoi(argv[1]), 0);
    }
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0);
    struct sock_fprog program = {length, filter};
    if (i + 1 >= argc || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return 2;
    execv(argv[i + 1], argv + i + 1);
    return 3;
}
