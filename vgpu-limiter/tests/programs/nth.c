// SPDX-License-Identifier: Apache-2.0
//
// nth N one|on COMMAND...: runs a command of whose system calls the N-th fails, or that
// and all later ones do, as they might for want of memory, descriptors or rights. Counted
// are those of the library, and of the driver without a device, between two calls of
// getpgid by which the program says so (BEGIN, END), but for what can't fail, waits or
// answers. A close that fails has closed the descriptor. Prints at the end how many there
// were, and which was made to fail.

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define NO_PTRACE 77 // exit code where processes may not be traced
#define BEGIN (-1001L)
#define END (-1000L)

static const int uncounted[] = {
    SYS_exit, SYS_exit_group, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn,
    SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep, SYS_restart_syscall, SYS_wait4, SYS_execve, SYS_getpid, SYS_gettid, SYS_poll,
    SYS_kill, SYS_tgkill, SYS_set_robust_list, SYS_rseq, SYS_set_tid_address, SYS_alarm};
#define COUNT (sizeof uncounted / sizeof uncounted[0])

static struct sock_filter filter[2 * COUNT + 16];
static unsigned short length;

static void add(unsigned code, unsigned value, unsigned char skipped) {
    filter[length++] = (struct sock_filter){(unsigned short)code, 0, skipped, value};
}

// All are told to the tracer but these, and reading input and writing output.
static bool filters(void) {
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0);
    for (size_t i = 0; i < COUNT; i++) {
        add(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)uncounted[i], 1);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0);
    }
    add(BPF_JMP | BPF_JGT | BPF_K, SYS_write, 0); // read is 0, write 1
    filter[length - 1].jt = 3;
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]), 0);
    add(BPF_JMP | BPF_JGT | BPF_K, STDERR_FILENO, 0);
    filter[length - 1].jt = 1;
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0);
    add(BPF_RET | BPF_K, SECCOMP_RET_TRACE, 0);
    struct sock_fprog program = {length, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int error_of(long call) {
    switch (call) {
    case SYS_mmap:
    case SYS_munmap: // it may part a mapping, of which there may be only so many
    case SYS_mprotect:
    case SYS_mremap:
    case SYS_madvise:
        return ENOMEM;
    case SYS_open:
    case SYS_openat:
    case SYS_dup:
    case SYS_memfd_create:
        return EMFILE;
    case SYS_fcntl:
        return ENOLCK;
    case SYS_read:
    case SYS_pread64:
    case SYS_close:
        return EIO;
    case SYS_futex:
        return EINTR;
    default:
        return EPERM;
    }
}

static bool counting;
static pid_t closes; // its close is to have failed when it has been made
static long wanted, seen, failed = -1;

// Where code of the library, of the program and of the simulated libraries lies.
#define MOST 16
static struct code {
    unsigned long from, to;
    bool library;
} code[MOST];
static int codes = -1; // -1: to be looked up

static void find_code(pid_t pid) {
    char path[32], line[512];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    codes = 0;
    while (maps != NULL && codes < MOST && fgets(line, sizeof line, maps) != NULL) {
        char rights[5];
        bool library = strstr(line, "/libvgpu") != NULL;
        if (sscanf(line, "%lx-%lx %4s", &code[codes].from, &code[codes].to, rights) == 3 && rights[2] == 'x' &&
            (library || strstr(line, "/simgpu/lib") != NULL || strstr(line, "/calls\n") != NULL))
            code[codes++].library = library;
    }
    if (maps != NULL)
        fclose(maps);
}

// What brk answers if it can't do what it is asked to.
static unsigned long heap_end(pid_t pid) {
    char path[32], line[512];
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    FILE *maps = fopen(path, "re");
    unsigned long from, to, end = 0;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        if (strstr(line, "[heap]") != NULL && sscanf(line, "%lx-%lx", &from, &to) == 2)
            end = to;
    if (maps != NULL)
        fclose(maps);
    return end;
}

// Whether it is the address behind a call instruction, unlike those of functions.
static bool is_return(pid_t pid, unsigned long address) {
    unsigned char before[6];
    struct iovec here = {before, sizeof before}, there = {(void *)(address - sizeof before), sizeof before};
    return process_vm_readv(pid, &here, 1, &there, 1, 0) == (ssize_t)sizeof before &&
           (before[1] == 0xe8 || before[0] == 0xff || before[3] == 0xff || before[4] == 0xff);
}

// Whether the innermost of these that a call comes from, by what lies on the stack, is the
// library.
static bool is_library(pid_t pid, unsigned long stack) {
    static unsigned long words[4096];
    struct iovec here = {words, sizeof words}, there = {(void *)stack, sizeof words};
    ssize_t bytes = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (codes < 0)
        find_code(pid);
    for (ssize_t i = 0; i < bytes / (ssize_t)sizeof words[0]; i++)
        for (int c = 0; c < codes; c++)
            if (words[i] >= code[c].from && words[i] < code[c].to && is_return(pid, words[i]))
                return code[c].library;
    return false;
}

static void look(pid_t pid, bool on) {
    struct user_regs_struct registers;
    if (ptrace(PTRACE_GETREGS, pid, NULL, &registers) != 0)
        return;
    long call = (long)registers.orig_rax;
    if (call == SYS_getpgid && ((int)registers.rdi == BEGIN || (int)registers.rdi == END)) {
        counting = (int)registers.rdi == BEGIN;
        return;
    }
    bool waits = call == SYS_fcntl && registers.rsi == F_OFD_SETLKW; // the simulated driver, for its state
    waits |= call == SYS_futex && (registers.rsi & FUTEX_CMD_MASK) != FUTEX_WAIT; // to wake can't fail
    if (!counting || waits || !is_library(pid, registers.rsp))
        return;
    if (call == SYS_mmap)
        codes = -1;
    if (++seen < wanted || (seen > wanted && !on))
        return;
    if (failed < 0)
        failed = call;
    if (call == SYS_close) { // the descriptor is closed all the same
        closes = pid;
        return;
    }
    registers.orig_rax = (unsigned long long)-1;
    registers.rax = call == SYS_brk ? heap_end(pid) : (unsigned long long)-error_of(call);
    ptrace(PTRACE_SETREGS, pid, NULL, &registers);
}

static void has_closed(pid_t pid) {
    struct user_regs_struct registers;
    closes = 0;
    if (ptrace(PTRACE_GETREGS, pid, NULL, &registers) != 0)
        return;
    registers.rax = (unsigned long long)-error_of(SYS_close);
    ptrace(PTRACE_SETREGS, pid, NULL, &registers);
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    wanted = atol(argv[1]);
    alarm(900); // instead of a program that waits for ever
    bool on = strcmp(argv[2], "on") == 0;
    pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(NO_PTRACE);
        if (raise(SIGSTOP) != 0 || !filters())
            _exit(2);
        execv(argv[3], argv + 3);
        _exit(3);
    }
    int status = 0, end = 0;
    if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == NO_PTRACE)
        return NO_PTRACE;
    if (!WIFSTOPPED(status) ||
        ptrace(PTRACE_SETOPTIONS, child, NULL,
               PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK) != 0 ||
        ptrace(PTRACE_CONT, child, NULL, NULL) != 0)
        return 4;
    for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0;) {
        if (pid == child && (WIFEXITED(status) || WIFSIGNALED(status)))
            end = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        if (!WIFSTOPPED(status))
            continue;
        int event = status >> 16, signal = WSTOPSIG(status);
        if (event == PTRACE_EVENT_SECCOMP)
            look(pid, on);
        else if (pid == closes && event == 0 && signal == SIGTRAP)
            has_closed(pid);
        bool own = event != 0 || signal == SIGTRAP || signal == SIGSTOP;
        ptrace(pid == closes ? PTRACE_SYSCALL : PTRACE_CONT, pid, NULL, (void *)(long)(own ? 0 : signal));
    }
    printf("nth %ld %ld\n", seen, failed);
    return end;
}
