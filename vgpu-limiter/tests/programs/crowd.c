// SPDX-License-Identifier: Apache-2.0
//
// crowd PROCESSES KILLED MIB: so many processes begin with CUDA at once, each with a
// context and MIB of memory; so many of them are killed, the most while others still
// begin. Prints at which stage how many of those that live have failed, or that they have
// all they want; they end when a line comes.

#include "cuda.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 2048

struct told {
    int index, stage, result; // the first stage that failed, or DONE
};
enum stage { INIT, CONTEXT, MEMORY, DONE };

static pid_t child[MOST];
static int gate[2], answers[2], end[2];

static struct told begin(int index, size_t bytes) {
    struct told told = {.index = index};
    CUcontext context;
    CUdeviceptr ptr;
    if ((told.result = cuInit(0)) != CUDA_SUCCESS)
        return told;
    told.stage = CONTEXT;
    if ((told.result = cuDevicePrimaryCtxRetain(&context, 0)) != CUDA_SUCCESS)
        return told;
    told.stage = MEMORY;
    cuCtxSetCurrent(context);
    if ((told.result = cuMemAlloc_v2(&ptr, bytes)) == CUDA_SUCCESS)
        told.stage = DONE;
    return told;
}

static void run(int index, size_t bytes) {
    char byte;
    close(gate[1]);
    close(end[1]);
    if (read(gate[0], &byte, 1) != 0)
        _exit(1);
    struct told told = begin(index, bytes);
    if (write(answers[1], &told, sizeof told) != sizeof told || read(end[0], &byte, 1) != 0)
        _exit(1);
    _exit(0);
}

// How many living processes have told this stage, or nothing yet (-1).
static int count(const int *stage, int processes, int which) {
    int n = 0;
    for (int i = 0; i < processes; i++)
        n += child[i] != 0 && stage[i] == which;
    return n;
}

int main(int argc, char **argv) {
    static int stage[MOST];
    int processes = argc == 4 ? atoi(argv[1]) : 0, to_kill = argc == 4 ? atoi(argv[2]) : 0, refused = 0;
    size_t bytes = argc == 4 ? strtoul(argv[3], NULL, 10) << 20 : 0;
    if (processes < 1 || processes > MOST || pipe(gate) != 0 || pipe(answers) != 0 || pipe(end) != 0)
        return 2;
    for (int i = 0; i < processes; i++) {
        stage[i] = -1;
        child[i] = fork();
        if (child[i] < 0)
            return 3;
        if (child[i] == 0)
            run(i, bytes);
    }
    close(answers[1]);
    close(gate[1]); // here they go
    for (unsigned dice = 1; count(stage, processes, -1) > 0;) {
        struct told told;
        if (read(answers[0], &told, sizeof told) != sizeof told)
            return 4;
        stage[told.index] = told.stage;
        refused += told.result == CUDA_ERROR_NOT_PERMITTED;
        dice = dice * 1664525 + 1013904223;
        int victim = (int)(dice >> 8) % processes; // wherever it has got to
        if (to_kill == 0 || child[victim] == 0)
            continue;
        kill(child[victim], SIGKILL);
        waitpid(child[victim], NULL, 0);
        child[victim] = 0;
        to_kill--;
    }
    printf("init %d context %d memory %d done %d refused %d\n", count(stage, processes, INIT), count(stage, processes, CONTEXT),
           count(stage, processes, MEMORY), count(stage, processes, DONE), refused);
    fflush(stdout);
    getchar();
    close(end[1]);
    while (wait(NULL) > 0)
        ;
    return 0;
}
