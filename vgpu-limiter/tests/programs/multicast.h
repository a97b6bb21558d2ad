// SPDX-License-Identifier: Apache-2.0
//
// Part of calls: multicast objects.

#include <sched.h>

static int multicast(int place, size_t bytes, unsigned devices) {
    CUmulticastObjectProp prop = {.numDevices = devices, .size = bytes};
    int result = cuMulticastCreate(&handle[place], &prop);
    return result != 0 ? result : (int)cuMulticastAddDevice(handle[place], 0);
}

struct bound {
    int object, memory;
    size_t bytes;
    atomic_int thread;
};

static void *bind_all(void *argument) {
    struct bound *b = argument;
    atomic_store(&b->thread, (int)syscall(SYS_gettid));
    return (void *)(intptr_t)cuMulticastBindMem(handle[b->object], 0, handle[b->memory], 0, b->bytes, 0);
}

static bool sleeps(int thread) {
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    FILE *f = fopen(path, "re");
    size_t n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    const char *state = n > 0 ? strrchr(text, ')') : NULL;
    if (f != NULL)
        fclose(f);
    return state != NULL && state[1] != 0 && state[2] == 'S';
}

// Binds memory of device 0 to a new object of two devices in a thread of its own; once that
// waits, makes memory of device 1, exports the object as for another process, and adds the
// device.
static int bind_awaited(int object, int memory, size_t bytes) {
    struct bound b = {object, memory, bytes, 0};
    pthread_t thread;
    void *other;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemGenericAllocationHandle beside;
    int result = multicast(object, bytes, 2);
    if (result != 0 || (result = pthread_create(&thread, NULL, bind_all, &b)) != 0)
        return result;
    alarm(900); // who waits for ever
    while (atomic_load(&b.thread) == 0 || !sleeps(b.thread))
        sched_yield();
    result = cuMemCreate(&beside, bytes, &prop, 0);
    if (result == 0)
        result = cuMemRelease(beside);
    int fd = -1;
    if (result == 0)
        result = cuMemExportToShareableHandle(&fd, handle[object], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    close(fd);
    if (result == 0)
        result = cuMulticastAddDevice(handle[object], 1);
    if (result != 0)
        return result;
    pthread_join(thread, &other);
    alarm(0);
    return (int)(intptr_t)other;
}
