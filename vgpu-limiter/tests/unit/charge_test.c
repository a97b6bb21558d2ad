// SPDX-License-Identifier: Apache-2.0
//
// charge_test COUNTERS: processes of several threads charge and uncharge one
// device until they are killed, at any instruction, and are replaced. Whenever
// the others are stopped, what is really held is within the limit, and the new one
// goes on all the same; at the end, the last process can have exactly what nobody
// living holds, and no byte more. Threads uncharge what others have charged.

#include "check.h"
#include "memory/audit.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define LIMIT (UINT64_C(1) << 26)
#define CHILDREN 4
#define THREADS 2
#define ROUNDS 100

// What each thread really holds: raised after a charge, lowered before an
// uncharge. Written by the child, read by the parent.
static atomic_ullong (*held)[THREADS];
static atomic_ullong *grants, *asked;
static atomic_ullong handed; // charged by one thread, for any other to uncharge
static struct vgpu_process process;

// Between the steps of a charge and of an audit: let somebody else run.
void vgpu_test_step(void) {
    static _Thread_local unsigned random = 1;
    random = random * 1103515245 + 12345;
    if (random >> 16 & 1)
        sched_yield();
}

static void attach(const char *path) {
    const char *wrong = vgpu_region_join(path, 1, &process.region);
    if (wrong != NULL)
        fprintf(stderr, "%s\n", wrong);
    CHECK(wrong == NULL);
    process.limits.device_count = 1;
    process.limits.device[0].memory_bytes = LIMIT;
}

static void *churn(void *argument) {
    atomic_ullong *mine = argument;
    uint64_t random = (uint64_t)(uintptr_t)mine + (uint64_t)getpid() * UINT64_C(2654435761);
    for (;;) {
        uint64_t bytes[4] = {0};
        for (int i = 0; i < 4; i++) {
            random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
            uint64_t want = (random >> 40) % (LIMIT / 8) + 1;
            bool granted = vgpu_charge(&process, 0, want);
            atomic_fetch_add(asked, 1);
            if (!granted)
                continue;
            bytes[i] = want;
            atomic_fetch_add(mine, want);
            atomic_fetch_add(grants, 1);
        }
        for (int i = 0; i < 4; i++) {
            bytes[i] = atomic_exchange(&handed, bytes[i]);
            atomic_fetch_sub(mine, bytes[i]);
            vgpu_uncharge(&process, 0, bytes[i]);
        }
    }
    return NULL;
}

static pid_t start(const char *path, int child) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid != 0)
        return pid;
    attach(path);
    pthread_t thread;
    for (int t = 1; t < THREADS; t++)
        CHECK(pthread_create(&thread, NULL, churn, &held[child][t]) == 0);
    churn(&held[child][0]);
    return 0;
}

static uint64_t really_held(void) {
    uint64_t sum = 0;
    for (int c = 0; c < CHILDREN; c++)
        for (int t = 0; t < THREADS; t++)
            sum += atomic_load(&held[c][t]);
    return sum;
}

static void stop(pid_t pid) {
    int status;
    CHECK(kill(pid, SIGSTOP) == 0);
    CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
}

static bool holds(uint64_t bytes) {
    uint64_t begun, now;
    return vgpu_read_held(process.region.slot, 0, &begun, &now) && now == bytes && vgpu_begun(process.region.slot, 0) == begun;
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    held = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(held != MAP_FAILED);
    grants = (atomic_ullong *)(held + CHILDREN);
    asked = grants + 1;
    pid_t child[CHILDREN];
    for (int c = 0; c < CHILDREN; c++)
        child[c] = start(argv[1], c);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t before = atomic_load(grants);
        while (atomic_load(grants) < before + 200)
            sched_yield();
        for (int c = 0; c < CHILDREN; c++)
            stop(child[c]);
        CHECK(really_held() <= LIMIT);
        int victim = round % CHILDREN;
        CHECK(kill(child[victim], SIGKILL) == 0 && waitpid(child[victim], NULL, 0) == child[victim]);
        for (int t = 0; t < THREADS; t++)
            atomic_store(&held[victim][t], 0);
        before = atomic_load(asked);
        child[victim] = start(argv[1], victim);
        while (atomic_load(asked) < before + 20)
            sched_yield();
        for (int c = 0; c < CHILDREN; c++)
            CHECK(c == victim || kill(child[c], SIGCONT) == 0);
    }
    for (int c = 0; c < CHILDREN; c++)
        CHECK(kill(child[c], SIGKILL) == 0 && waitpid(child[c], NULL, 0) == child[c]);
    attach(argv[1]);
    CHECK(vgpu_charge(&process, 0, LIMIT));
    CHECK(!vgpu_charge(&process, 0, 1));
    vgpu_uncharge(&process, 0, LIMIT);
    CHECK(vgpu_charged(&process, 0) == 0);
    uint64_t begun, now;
    vgpu_hand_over_begin(&process, 0);
    CHECK(!vgpu_read_held(process.region.slot, 0, &begun, &now) && now == 0); // a change is under way
    vgpu_hand_over_end(&process, 0, 0, true);
    CHECK(holds(0));
    CHECK(process.region.counters->header.slots_used <= CHILDREN + 1);
    return 0;
}
