// SPDX-License-Identifier: Apache-2.0
//
// Threads that are cancelled in a call, and a process without another descriptor.

#include <sys/resource.h>

static int use_up_descriptors(void) {
    struct rlimit few = {40, 40};
    if (setrlimit(RLIMIT_NOFILE, &few) != 0)
        return -1;
    while (dup(STDIN_FILENO) >= 0)
        ;
    return 0;
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
