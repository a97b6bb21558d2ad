// SPDX-License-Identifier: Apache-2.0
//
// Part of storm: memory that processes lend each other.

#define BOARD 8 // handles of each kind on it

// The board: handles that processes leave for each other, in one file. A handle is
// opened under its lock, and taken down under it before its memory is freed. The
// lock ends with its holder.
static int lock_board(short type) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET};
    int board = open("board", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    while (board >= 0 && fcntl(board, F_OFD_SETLKW, &lock) != 0)
        ;
    return board;
}

// Memory of whoever left a handle. Its owner may have died, or be this process:
// an error then isn't one.
static bool borrow(struct thing *t) {
    CUipcMemHandle handle;
    int board = lock_board(F_RDLCK);
    bool opened = pread(board, &handle, sizeof handle, sizeof handle * below(BOARD)) == sizeof handle &&
                  cuIpcOpenMemHandle_v2(&t->ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS;
    close(board);
    return opened;
}

// Takes down what the thing was lent by, and puts it up once more unless it ends.
static void lend(struct thing *t, bool ends) {
    static const CUipcMemHandle none;
    CUipcMemHandle handle, there;
    // Managed memory can't be passed on.
    if ((ends && t->live == 0) || cuIpcGetMemHandle(&handle, t->ptr) != CUDA_SUCCESS)
        return;
    int board = lock_board(F_WRLCK);
    for (int i = 0; i < BOARD; i++)
        if (pread(board, &there, sizeof there, i * (off_t)sizeof there) == sizeof there &&
            memcmp(&there, &handle, sizeof there) == 0)
            good("pwrite", pwrite(board, &none, sizeof none, i * (off_t)sizeof there) < 0);
    if (!ends)
        good("pwrite", pwrite(board, &handle, sizeof handle, sizeof handle * below(BOARD)) < 0);
    close(board);
    t->live = 1;
}

// The same for memory made by cuMemCreate, whose handles are descriptors: the board
// says whose and which. Whoever has lent a thing keeps a handle until it ends.
static const off_t second_half = BOARD * sizeof(CUipcMemHandle);

struct passed {
    int pid, descriptor;
};

static bool receive(struct thing *t) {
    struct passed from;
    int board = lock_board(F_RDLCK);
    bool there = pread(board, &from, sizeof from, second_half + (off_t)(sizeof from * below(BOARD))) == sizeof from && from.pid != 0;
    int process = there ? (int)syscall(SYS_pidfd_open, from.pid, 0) : -1;
    int descriptor = process >= 0 ? (int)syscall(SYS_pidfd_getfd, process, from.descriptor, 0) : -1;
    t->handles = descriptor >= 0 && cuMemImportFromShareableHandle(&t->handle, (void *)(intptr_t)descriptor,
                                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS;
    if (descriptor >= 0)
        close(descriptor);
    if (process >= 0)
        close(process);
    close(board);
    t->live = -1; // can't be passed on
    return t->handles != 0;
}

static void pass_on(struct thing *t, bool ends) {
    static const struct passed nobody;
    struct passed own = {getpid(), t->descriptor}, there;
    if (t->live < 0 || (ends && t->live == 0))
        return;
    if (t->live == 0) {
        if (t->handles == 0 || !TRY(cuMemExportToShareableHandle, &t->descriptor, t->handle,
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
            return;
        own.descriptor = t->descriptor;
        t->live = 1;
    }
    int board = lock_board(F_WRLCK);
    for (int i = 0; i < BOARD; i++)
        if (pread(board, &there, sizeof there, second_half + i * (off_t)sizeof there) == sizeof there &&
            memcmp(&there, &own, sizeof there) == 0)
            good("pwrite", pwrite(board, &nobody, sizeof nobody, second_half + i * (off_t)sizeof there) < 0);
    if (!ends)
        good("pwrite", pwrite(board, &own, sizeof own, second_half + (off_t)(sizeof own * below(BOARD))) < 0);
    close(board);
}
