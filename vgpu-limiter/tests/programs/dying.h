// SPDX-License-Identifier: Apache-2.0
//
// Threads that are cancelled in a call, and a process without another descriptor or anything
// else that there is a limit on.

#include <sched.h>
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

static atomic_int launched;

static void *launches_on(void *unused) {
    cuCtxSetCurrent(context[0]);
    while (launch(0, 1000, 1) == 0)
        atomic_fetch_add(&launched, 1);
    return unused;
}

// Cancels a thread that has made so many launches and waits for its turn to make the next
// one. Returns how many it has made.
static int cancelled_waiting(int count) {
    pthread_t thread;
    atomic_store(&launched, 0);
    if (load_kernel() != 0 || pthread_create(&thread, NULL, launches_on, NULL) != 0)
        return -1;
    alarm(600);
    while (atomic_load(&launched) < count)
        sched_yield();
    return pthread_cancel(thread) != 0 || pthread_join(thread, NULL) != 0 ? -1 : atomic_load(&launched);
}

// What a thread does before it ends.
struct task {
    int (*call)(const struct task *);
    int place, count, result;
    long microseconds;
};

static void *does(void *argument) {
    struct task *task = argument;
    task->result = cuCtxSetCurrent(context[0]);
    if (task->result == 0)
        task->result = task->call(task);
    return NULL;
}

static int in_thread(struct task task, int (*call)(const struct task *)) {
    pthread_t thread;
    task.call = call;
    int result = load_kernel();
    if (result == 0)
        result = pthread_create(&thread, NULL, does, &task);
    return result != 0 ? result : pthread_join(thread, NULL) != 0 ? -1 : task.result;
}

static int does_launch(const struct task *task) { return launch(task->place, task->microseconds, task->count); }

static int begins_capture(const struct task *task) {
    int result = cuStreamBeginCapture_v2(stream[task->place], CU_STREAM_CAPTURE_MODE_RELAXED);
    return result != 0 ? result : does_launch(task);
}

static int ends_capture(const struct task *task) {
    CUgraph graph;
    size_t nodes = 0;
    int result = does_launch(task);
    if (result == 0)
        result = cuStreamEndCapture(stream[task->place], &graph);
    if (result == 0)
        result = cuGraphGetNodes(graph, NULL, &nodes);
    if (result == 0 && nodes != 2 * (size_t)task->count)
        return 1000;
    return result != 0 ? result : (int)cuGraphInstantiateWithFlags(&exec[task->place], graph, 0);
}

// So many threads, one after the other, make launches and end.
static int launch_by_threads(int place, long microseconds, int count, int threads) {
    struct task task = {.place = place, .count = count, .microseconds = microseconds};
    int result = 0;
    for (int i = 0; result == 0 && i < threads; i++)
        result = in_thread(task, does_launch);
    return result;
}

// A graph of twice so many kernels: the thread that begins it ends with half of them.
static int capture_by_threads(int place, long microseconds, int count) {
    struct task task = {.place = place, .count = count, .microseconds = microseconds};
    int result = in_thread(task, begins_capture);
    return result != 0 ? result : in_thread(task, ends_capture);
}

// Makes a stream for a few launches, again and again, while other threads do the same.
static void *uses_streams(void *argument) {
    struct task *task = argument;
    unsigned long long ns = (unsigned long long)task->microseconds * 1000;
    void *params[] = {&ns};
    CUstream own;
    task->result = cuCtxSetCurrent(context[0]);
    for (int i = 0; task->result == 0 && i < task->count; i++) {
        task->result = cuStreamCreate(&own, CU_STREAM_NON_BLOCKING);
        for (int n = 0; task->result == 0 && n < 4; n++)
            task->result = cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, own, params, NULL);
        task->result = task->result != 0 ? task->result : (int)cuStreamSynchronize(own);
        task->result = task->result != 0 ? task->result : (int)cuStreamDestroy_v2(own);
    }
    return NULL;
}

static int launch_on_own_streams(int threads, long microseconds, int count) {
    pthread_t thread[64];
    struct task task[64];
    int result = load_kernel(), begun = 0;
    for (; result == 0 && begun < threads && begun < 64; begun++) {
        task[begun] = (struct task){.count = count, .microseconds = microseconds};
        result = pthread_create(&thread[begun], NULL, uses_streams, &task[begun]);
    }
    for (int i = 0; i < begun; i++)
        if (pthread_join(thread[i], NULL) == 0 && result == 0)
            result = task[i].result;
    return result;
}
