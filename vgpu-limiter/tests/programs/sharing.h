// SPDX-License-Identifier: Apache-2.0
//
// Part of calls: memory passed from one process to another, handles in files and
// descriptors through a socket, both named by a number and in the directory that
// the processes share or that a path leads to.

#include <sys/socket.h>
#include <sys/un.h>

static int exported[64], mailbox = -1;
static CUexternalMemory external[64];

static const char *file(const char *kind, int number) {
    static char name[64];
    snprintf(name, sizeof name, "%s.%d", kind, number);
    return name;
}

static int save(int number, const void *bytes, size_t size) {
    FILE *f = fopen(file("handle", number), "we");
    int failed = f == NULL || fwrite(bytes, size, 1, f) != 1;
    return (f != NULL && fclose(f) != 0) || failed ? -1 : 0;
}

static int load(int number, void *bytes, size_t size) {
    FILE *f = fopen(file("handle", number), "re");
    int failed = f == NULL || fread(bytes, size, 1, f) != 1;
    if (f != NULL)
        fclose(f);
    return failed ? -1 : 0;
}

static int ipc_get(int number, int place) {
    CUipcMemHandle ipc;
    int result = cuIpcGetMemHandle(&ipc, ptr[place]);
    return result != 0 ? result : save(number, &ipc, sizeof ipc);
}

static int ipc_open(int place, int number) {
    CUipcMemHandle ipc;
    return load(number, &ipc, sizeof ipc) != 0
               ? -1
               : (int)cuIpcOpenMemHandle_v2(&ptr[place], ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static atomic_bool enough;

static void *share_all(void *unused) {
    CUipcMemHandle ipc;
    CUdeviceptr own[64];
    int result = (int)cuCtxSetCurrent(context[0]);
    for (int i = 0; result == 0 && i < 64; i++)
        result = (int)cuMemAlloc_v2(&own[i], 1);
    for (unsigned i = 0; result == 0 && !atomic_load(&enough); i++)
        result = (int)cuIpcGetMemHandle(&ipc, own[i % 64]);
    (void)unused;
    return (void *)(intptr_t)result;
}

// Destroys a context in which the numbers below are open, again and again, while another
// thread shares memory.
static int share_beside(int numbers, int rounds) {
    pthread_t thread;
    void *other;
    CUipcMemHandle ipc[64];
    int result = numbers <= 64 ? 0 : -1;
    for (int n = 0; result == 0 && n < numbers; n++)
        result = load(n, &ipc[n], sizeof ipc[n]);
    if (result != 0 || (result = pthread_create(&thread, NULL, share_all, NULL)) != 0)
        return result;
    alarm(900); // who waits for ever
    for (int i = 0; result == 0 && i < rounds; i++) {
        result = (int)cuCtxCreate_v2(&context[1], 0, 0);
        for (int n = 0; result == 0 && n < numbers; n++)
            result = (int)cuIpcOpenMemHandle_v2(&ptr[n], ipc[n], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        if (result == 0)
            result = (int)cuCtxDestroy_v2(context[1]);
        for (int n = 0; result == 0 && n < numbers; n++) // the simulated driver keeps it
            result = (int)cuIpcCloseMemHandle(ptr[n]);
    }
    atomic_store(&enough, true);
    pthread_join(thread, &other);
    alarm(0);
    return result != 0 ? result : (int)(intptr_t)other;
}

static struct sockaddr_un address(int number) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", file("socket", number));
    return at;
}

static int listen_at(int number) {
    struct sockaddr_un at = address(number);
    mailbox = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return bind(mailbox, (struct sockaddr *)&at, sizeof at);
}

union control {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
};

static int send_descriptor(int place, int number) {
    struct sockaddr_un at = address(number);
    struct iovec byte = {"", 1};
    union control control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr message = {&at, sizeof at, &byte, 1, &control, sizeof control, 0};
    memcpy(CMSG_DATA(&control.header), &exported[place], sizeof(int));
    int from = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int failed = sendmsg(from, &message, 0) != 1;
    close(from);
    close(exported[place]);
    return failed;
}

static int receive_descriptor(int place) {
    char byte;
    struct iovec room = {&byte, 1};
    union control control;
    struct msghdr message = {NULL, 0, &room, 1, &control, sizeof control, 0};
    if (recvmsg(mailbox, &message, 0) != 1 || CMSG_FIRSTHDR(&message) == NULL)
        return -1;
    memcpy(&exported[place], CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    return 0;
}

static int import_handle(int place) {
    return cuMemImportFromShareableHandle(&handle[place], (void *)(intptr_t)exported[place],
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

static int create_fabric(int place, size_t bytes, int device) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    return cuMemCreate(&handle[place], bytes, &prop, 0);
}

static int export_fabric(int number, int place) {
    CUmemFabricHandle fabric;
    int result = cuMemExportToShareableHandle(&fabric, handle[place], CU_MEM_HANDLE_TYPE_FABRIC, 0);
    return result != 0 ? result : save(number, &fabric, sizeof fabric);
}

static int import_fabric(int place, int number) {
    CUmemFabricHandle fabric;
    return load(number, &fabric, sizeof fabric) != 0
               ? -1
               : (int)cuMemImportFromShareableHandle(&handle[place], &fabric, CU_MEM_HANDLE_TYPE_FABRIC);
}

static int import_pool(int place) {
    return cuMemPoolImportFromShareableHandle(&pool[place], (void *)(intptr_t)exported[place],
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static int export_pointer(int number, int place) {
    CUmemPoolPtrExportData data;
    int result = cuMemPoolExportPointer(&data, ptr[place]);
    return result != 0 ? result : save(number, &data, sizeof data);
}

static int import_pointer(int place, int number, int from) {
    CUmemPoolPtrExportData data;
    return load(number, &data, sizeof data) != 0 ? -1
                                                 : (int)cuMemPoolImportPointer(&ptr[place], pool[from], &data);
}

static int import_external(int place, size_t bytes) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = bytes};
    return cuImportExternalMemory(&external[place], &desc);
}
