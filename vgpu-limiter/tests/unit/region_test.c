// SPDX-License-Identifier: Apache-2.0
//
// region_test COUNTERS: counters with anything wrong in their header or length are
// refused. Behind a right header a tenant can write what it wants: whatever is
// there, nothing is read beyond the file, no walk is longer than the slots, and
// every charge and audit comes back with an answer.
//
// And what a process does to begin doesn't grow with how many there are: it looks at few
// of their locks, each of which costs the more, the more there are.

#include "check.h"
#include "memory/audit.h"

#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define ROUNDS 100
#define CROWD 100
#define FEW 10

void vgpu_test_step(void) {}

static uint64_t random_state = 1;

static uint64_t random_word(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return random_state >> 11 ^ random_state << 40;
}

static void refused(const char *path, const void *bytes, size_t n, uint32_t devices) {
    struct vgpu_region region;
    put(path, bytes, n);
    CHECK(vgpu_region_join(path, devices, &region) != NULL);
    CHECK(vgpu_region_view(path, devices, &region) != NULL);
}

static void refuses_damage(const char *path, const struct vgpu_counters *good) {
    static unsigned char longer[sizeof *good + 1];
    memcpy(longer, good, sizeof *good);
    refused(path, longer, sizeof longer, 1);
    for (size_t n = 0; n < sizeof *good; n += n < 4096 ? 512 : 65536)
        refused(path, good, n, 1);
    refused(path, good, sizeof *good, 2);
    for (size_t bit = 0; bit < 8 * offsetof(struct vgpu_counters_header, slots_used); bit++) {
        struct vgpu_counters *bad = malloc(sizeof *bad);
        memcpy(bad, good, sizeof *bad);
        ((unsigned char *)bad)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        refused(path, bad, sizeof *bad, 1);
        free(bad);
    }
    put(path, good, sizeof *good);
    struct vgpu_region region;
    CHECK(vgpu_region_join("no such file", 1, &region) != NULL);
    CHECK(vgpu_region_join("/", 1, &region) != NULL);
}

// Some rounds keep our own slot, and know nothing of the rounds before, so that charges go all
// the way; some keep few slots, so that an audit can come to its end.
static void scribble(struct vgpu_process *process, int round) {
    const struct vgpu_region *region = &process->region;
    struct vgpu_counters *counters = region->counters;
    uint64_t *word = (uint64_t *)&counters->header.slots_used;
    uint64_t *end = (uint64_t *)(counters + 1);
    for (; word < end; word++)
        *word = random_word() % 4 != 0 ? random_word() : random_word() % 3;
    if (round % 3 != 0)
        counters->header.slots_used = (uint32_t)(random_word() % 8);
    if (round % 2 != 0) {
        region->slot->state = region->slot_state;
        memset(&process->seen, 0, sizeof process->seen);
        process->damaged = false;
    }
}

// In place of the C library's: the locks are looked at by it.
static int looks;
int fcntl(int fd, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    looks++;
    return (int)syscall(SYS_fcntl, fd, command, argument);
}

static int live(const struct vgpu_counters *counters) {
    int n = 0;
    for (uint32_t i = 0; i < VGPU_SLOTS; i++)
        n += vgpu_slot_is_live(counters->slot[i].state);
    return n;
}

static void begins_in_a_crowd(const char *path) {
    static struct vgpu_process process;
    pid_t child[CROWD];
    int joined[2];
    char byte = 0;
    CHECK(pipe(joined) == 0);
    for (int i = 0; i < CROWD; i++) {
        child[i] = fork();
        CHECK(child[i] >= 0);
        if (child[i] == 0) {
            CHECK(vgpu_region_join(path, 1, &process.region) == NULL);
            CHECK(write(joined[1], &byte, 1) == 1);
            for (;;)
                pause();
        }
    }
    for (int i = 0; i < CROWD; i++)
        CHECK(read(joined[0], &byte, 1) == 1);
    looks = 0;
    CHECK(vgpu_region_join(path, 1, &process.region) == NULL);
    process.limits.device_count = 1;
    vgpu_audit(&process, false);
    CHECK(looks < FEW);
    CHECK(live(process.region.counters) == CROWD + 1);

    // Those that are gone are found, those that nobody has waited for when it matters.
    for (int i = 0; i < CROWD; i++) {
        siginfo_t info;
        CHECK(kill(child[i], SIGKILL) == 0);
        CHECK(i % 2 == 0 ? waitpid(child[i], NULL, 0) == child[i] : waitid(P_PID, (id_t)child[i], &info, WEXITED | WNOWAIT) == 0);
    }
    vgpu_audit(&process, false);
    CHECK(live(process.region.counters) == CROWD / 2 + 1);
    vgpu_audit(&process, true);
    CHECK(live(process.region.counters) == 1);
}

// Turns are ours, others', or nobody can tell.
static void tells_turns(const struct vgpu_region *region, const char *path) {
    static struct vgpu_region other;
    struct vgpu_region lost = *region;
    int status;
    CHECK(vgpu_region_take_turn(region, 0) == VGPU_TURN_OURS);
    pid_t child = fork();
    if (child == 0) {
        CHECK(vgpu_region_join(path, 1, &other) == NULL);
        CHECK(vgpu_region_take_turn(&other, 0) == VGPU_TURN_OTHERS);
        CHECK(vgpu_region_take_turn(&other, 1) == VGPU_TURN_OURS);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    vgpu_region_end_turn(region, 0);
    lost.fd = open("/dev/null", O_RDWR);
    CHECK(lost.fd >= 0 && vgpu_region_take_turn(&lost, 0) == VGPU_TURN_UNKNOWN);
}

// What only grows and goes back is found, by whoever has seen it, and for good.
static void finds_what_goes_back(struct vgpu_process *process) {
    struct vgpu_counters *counters = process->region.counters;
    uint64_t *begun = &process->region.slot->device[0].begun, magic = counters->header.magic;
    uint32_t slots = counters->header.slots_used;
    for (int way = 0; way < 3; way++) {
        CHECK(vgpu_charge(process, 0, 2) && !vgpu_is_damaged(process));
        if (way < 2)
            *begun -= 1;
        else
            counters->header.slots_used = 0;
        if (way == 0)
            vgpu_uncharge(process, 0, 1);
        else if (way == 1)
            CHECK(!vgpu_charge(process, 0, 1));
        else
            vgpu_audit(process, true);
        CHECK(vgpu_is_damaged(process) && counters->header.magic == 0);
        *begun += 1;
        counters->header.slots_used = slots;
        counters->header.magic = magic;
        CHECK(!vgpu_charge(process, 0, 1));
        memset(&process->seen, 0, sizeof process->seen);
        process->damaged = false;
    }
}

int main(int argc, char **argv) {
    static struct vgpu_counters good;
    static struct vgpu_process process;
    CHECK(argc >= 2);
    get(argv[1], &good, sizeof good);
    refuses_damage(argv[1], &good);
    begins_in_a_crowd(argv[1]);
    put(argv[1], &good, sizeof good);

    CHECK(vgpu_region_join(argv[1], 1, &process.region) == NULL);
    tells_turns(&process.region, argv[1]);
    process.limits.device_count = 1;
    process.limits.device[0].memory_bytes = UINT64_C(1) << 30;
    finds_what_goes_back(&process);
    int granted = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct vgpu_counters *counters = process.region.counters;
        scribble(&process, round);
        CHECK(vgpu_region_slots(counters) <= VGPU_SLOTS);
        uint64_t bytes = random_word() % (UINT64_C(1) << 31);
        bool fits = vgpu_charge(&process, 0, bytes);
        CHECK(!fits || bytes <= process.limits.device[0].memory_bytes);
        granted += fits;
        vgpu_uncharge(&process, 0, bytes);
        vgpu_audit(&process, true);
        for (uint32_t i = 0; i < VGPU_SLOTS; i += 17)
            vgpu_region_lives(&process.region, i);
    }
    CHECK(granted > 0);
    return 0;
}
