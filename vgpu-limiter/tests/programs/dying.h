// SPDX-License-Identifier: Apache-2.0
//
// Threads that are cancelled in a call, and a process without another descriptor or anything
// else that there is a limit on.

#include <sys/resource.h>

static int use_up_descriptors(void) {
    struct rlimit few = {40, 40};
    if (setrlimit(RLIMIT_NOFILE, &few) != 0)
        return -1;
    while (dup(STDIN_FILENO) >= 0)
        ;
    return 0;
}

// What is in use of memory, by its name in /proc.
static rlim_t used(const char *what) {
    static char status[4096];
    int fd = open("/proc/self/status", O_RDONLY);
    ssize_t length = read(fd, status, sizeof status - 1);
    char *found = length > 0 && close(fd) == 0 ? strstr(status, what) : NULL;
    return found != NULL ? strtoul(found + strlen(what), NULL, 10) << 10 : 0;
}

// Limits a resource to what is in use of it and so much more; -1: no more than before.
static int limit(int resource, long more) {
    struct rlimit now;
    if (getrlimit(resource, &now) != 0)
        return -1;
    now.rlim_cur = more < 0 ? now.rlim_max : (rlim_t)more;
    if (resource == RLIMIT_NOFILE && more >= 0) {
        int fd = dup(STDIN_FILENO); // the first that is free
        close(fd);
        now.rlim_cur += (rlim_t)fd;
    }
    if (more >= 0 && (resource == RLIMIT_AS || resource == RLIMIT_DATA))
        now.rlim_cur += used(resource == RLIMIT_AS ? "VmSize:" : "VmData:");
    return setrlimit(resource, &now);
}

static void loads_module(void) {
    CUmodule own;
    cuModuleLoadData(&own, "simgpu-module 1\nglobal g 4096\n");
}

static void launches(void) {
    for (;;)
        launch(0, 1000, 1);
}

static void *is_cancelled(void *call) {
    cuCtxSetCurrent(context[0]);
    pthread_cancel(pthread_self());
    (*(void (**)(void))call)();
    return NULL;
}

// Makes the call in a thread that is cancelled as soon as it can be. Whoever waits for
// that thread's locks afterwards ends with the alarm.
static int cancelled(void (*call)(void)) {
    pthread_t thread;
    int result = load_kernel();
    if (result == 0)
        result = pthread_create(&thread, NULL, is_cancelled, &call);
    alarm(600);
    return result != 0 ? result : pthread_join(thread, NULL);
}
