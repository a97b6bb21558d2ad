// SPDX-License-Identifier: Apache-2.0
//
// globals: uses CUDA, then prints what a process shares with all of its code, one
// line each, so that a run with the library can be compared with one without.

#include "cuda.h"

#include <dirent.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int use_cuda(void) {
    CUcontext context;
    CUstream stream;
    CUdeviceptr p, q;
    CUmodule module;
    CUfunction kernel;
    unsigned long long ns = 1000;
    void *params[] = {&ns};
    int result = cuInit(0);
    if (result == 0)
        result = cuDevicePrimaryCtxRetain(&context, 0);
    if (result == 0)
        result = cuCtxSetCurrent(context);
    if (result == 0)
        result = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (result == 0)
        result = cuModuleLoadData(&module, "simgpu-module 1\nkernel spin 0 argument\n");
    if (result == 0)
        result = cuModuleGetFunction(&kernel, module, "spin");
    for (int i = 0; result == 0 && i < 100; i++)
        result = cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
    if (result == 0)
        result = cuMemAlloc_v2(&p, 1 << 20);
    if (result == 0 && cuMemAlloc_v2(&q, (size_t)1 << 46) != CUDA_ERROR_OUT_OF_MEMORY)
        result = -1;
    if (result == 0)
        result = cuMemFree_v2(p);
    if (result == 0)
        result = cuStreamSynchronize(stream);
    return result;
}

static void print_signals(void) {
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    for (int s = 1; s < NSIG; s++) {
        struct sigaction action;
        if (sigaction(s, NULL, &action) == 0)
            printf("signal %d handled %d flags %x blocked %d\n", s,
                   action.sa_handler != SIG_DFL, (unsigned)action.sa_flags, sigismember(&blocked, s));
    }
    stack_t stack;
    sigaltstack(NULL, &stack);
    printf("signal stack %x\n", (unsigned)stack.ss_flags);
}

static void print_limits(void) {
    for (int i = 0; i < RLIM_NLIMITS; i++) {
        struct rlimit limit;
        struct itimerval timer;
        if (getrlimit(i, &limit) == 0)
            printf("limit %d %lu %lu\n", i, (unsigned long)limit.rlim_cur, (unsigned long)limit.rlim_max);
        if (i < 3 && getitimer(i, &timer) == 0)
            printf("timer %d %ld\n", i, (long)timer.it_value.tv_sec);
    }
    printf("nice %d\n", getpriority(PRIO_PROCESS, 0));
}

static void print_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char target[256];
        int fd = atoi(entry->d_name);
        ssize_t n = readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1);
        if (n < 0 || fd <= 2 || fd == dirfd(folder))
            continue;
        target[n] = 0;
        const char *name = strrchr(target, '/');
        printf("descriptor of %s flags %d\n", name != NULL ? name + 1 : target, fcntl(fd, F_GETFD));
    }
    closedir(folder);
}

static void print_rest(char **environ_before) {
    char line[256], name[32] = "";
    FILE *status = fopen("/proc/self/status", "re");
    while (fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, "Umask", 5) == 0 || strncmp(line, "Threads", 7) == 0 ||
            strncmp(line, "NoNewPrivs", 10) == 0 || strncmp(line, "Cap", 3) == 0)
            fputs(line, stdout);
    fclose(status);
    printf("environ moved %d\n", environ != environ_before);
    for (char **e = environ; *e != NULL; e++)
        if (strncmp(*e, "LD_PRELOAD=", 11) != 0)
            printf("environ %s\n", *e);
    prctl(PR_GET_NAME, name);
    printf("folder %s name %s dumpable %d\n", getcwd(line, sizeof line), name, prctl(PR_GET_DUMPABLE));
    printf("locale %s children %d\n", setlocale(LC_ALL, NULL), (int)wait(NULL));
}

int main(void) {
    char **environ_before = environ;
    printf("cuda %d\n", use_cuda());
    print_signals();
    print_limits();
    print_descriptors();
    print_rest(environ_before);
    return 0;
}
