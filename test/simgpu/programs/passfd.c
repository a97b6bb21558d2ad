// SPDX-License-Identifier: Apache-2.0
//
// passfd.c: a descriptor passed from one container to another by a Unix socket.
//
//   passfd give SOCKET FILE   opens the file and passes it, once somebody listens
//   passfd take SOCKET        takes what is passed, and keeps it; on SIGUSR1 it
//                             says whether the file still answers
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

static int fail(const char *what) {
    printf("error what=%s why=%s\n", what, strerrorname_np(errno));
    return 1;
}

static int give(int s, const struct sockaddr_un *to, const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return fail("open");
    while (connect(s, (const struct sockaddr *)to, sizeof *to) < 0) {
        if (errno != ENOENT && errno != ECONNREFUSED) return fail("connect");
        usleep(10000);
    }
    union control c = {{0}};
    struct iovec one = {"", 1};
    struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    if (sendmsg(s, &m, 0) != 1) return fail("sendmsg");
    printf("gave\n");
    pause();
    return 0;
}

static int take(int s, const struct sockaddr_un *at) {
    sigset_t asked;
    sigemptyset(&asked);
    sigaddset(&asked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &asked, NULL);
    if (bind(s, (const struct sockaddr *)at, sizeof *at) < 0 || chmod(at->sun_path, 0777) < 0 || listen(s, 1) < 0)
        return fail("listen");
    int from = accept(s, NULL, NULL);
    if (from < 0) return fail("accept");
    union control c;
    char byte;
    struct iovec one = {&byte, 1};
    struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
    if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&m)) return fail("recvmsg");
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    printf("took pid=%d fd=%d\n", getpid(), fd);
    for (int signal;;) {
        sigwait(&asked, &signal);
        char data[4];
        printf("read bytes=%zd\n", pread(fd, data, sizeof data, 0));
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (argc < 3 || strlen(argv[2]) >= sizeof at.sun_path) {
        printf("error usage=give|take\n");
        return 2;
    }
    strcpy(at.sun_path, argv[2]);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0) return fail("socket");
    if (strcmp(argv[1], "take") == 0) return take(s, &at);
    return argc < 4 ? 2 : give(s, &at, argv[3]);
}
