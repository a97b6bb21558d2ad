// SPDX-License-Identifier: Apache-2.0
//
// share_test COUNTERS: processes make allocations, import each other's, let go of
// both in any order and are killed at any instruction. Whenever the others are
// stopped, what is really held by anybody is within the limit; at the end, the last
// process can have exactly what nobody living holds.

#include "share.h"
#include "check.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define LIMIT (UINT64_C(1) << 26)
#define CHILDREN 4
#define ROUNDS 120
#define OBJECTS 32
#define MINE 4

// The device: an allocation lives as long as somebody has its bit in holders, and
// can be imported as long. Its number is index + OBJECTS * generation.
static struct object {
    atomic_uint holders;
    atomic_ullong bytes, number;
} *objects;
static atomic_ullong *imports, *left;
static struct vgpu_process process;
static uint64_t state;

static uint64_t random_below(uint64_t n) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (state >> 33) % n;
}

void vgpu_test_step(void) {
    if (random_below(2))
        sched_yield();
}

static void attach(const char *path) {
    CHECK(vgpu_region_join(path, 1, &process.region) == NULL);
    process.limits.device_count = 1;
    process.limits.device[0].memory_bytes = LIMIT;
    state = (uint64_t)getpid() * UINT64_C(2654435761);
}

static uint64_t id_of(uint64_t number) { return vgpu_share_id(&number, sizeof number); }

// Makes an allocation that others can import. The place of it, or NULL.
static struct object *make(unsigned bit, int *record) {
    uint64_t bytes = random_below(LIMIT / 8) + 1;
    if (!vgpu_charge(&process, 0, bytes))
        return NULL;
    for (struct object *o = objects; o < objects + OBJECTS; o++) {
        unsigned nobody = 0;
        // A bit of its own keeps the place while it is filled in.
        if (!atomic_compare_exchange_strong(&o->holders, &nobody, bit << CHILDREN))
            continue;
        atomic_store(&o->bytes, bytes);
        atomic_fetch_add(&o->number, OBJECTS);
        *record = vgpu_share(&process, id_of(o->number), 0, bytes);
        atomic_store(&o->holders, bit);
        return o;
    }
    vgpu_uncharge(&process, 0, bytes);
    return NULL;
}

// Imports some allocation of another process. The place of it, or NULL.
static struct object *import(unsigned bit, int *record) {
    struct object *o = &objects[random_below(OBJECTS)];
    uint64_t number = atomic_load(&o->number);
    unsigned holders = atomic_load(&o->holders);
    if (holders == 0 || holders >= 1u << CHILDREN || (holders & bit) != 0 ||
        (*record = vgpu_import(&process, id_of(number))) < 0)
        return NULL;
    while (holders != 0 && holders < 1u << CHILDREN && atomic_load(&o->number) == number) {
        if (!atomic_compare_exchange_weak(&o->holders, &holders, holders | bit))
            continue;
        atomic_fetch_add(imports, 1);
        return o;
    }
    vgpu_import_end(&process, *record); // it has gone meanwhile
    return NULL;
}

static void live(unsigned bit) {
    struct object *own[MINE] = {0}, *borrowed[MINE] = {0};
    int own_record[MINE], borrowed_record[MINE];
    for (;;) {
        size_t i = random_below(MINE);
        if (own[i] == NULL) {
            own[i] = make(bit, &own_record[i]);
        } else {
            unsigned others = atomic_fetch_and(&own[i]->holders, ~bit) & ~bit;
            atomic_fetch_add(left, others != 0);
            vgpu_share_end(&process, own_record[i], false);
            own[i] = NULL;
        }
        i = random_below(MINE);
        if (borrowed[i] == NULL) {
            borrowed[i] = import(bit, &borrowed_record[i]);
        } else {
            atomic_fetch_and(&borrowed[i]->holders, ~bit);
            vgpu_import_end(&process, borrowed_record[i]);
            borrowed[i] = NULL;
        }
    }
}

static pid_t start(const char *path, int child) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        attach(path);
        live(1u << child);
    }
    return pid;
}

static void bury(int child) {
    unsigned bits = 1u << child | 1u << child << CHILDREN;
    for (struct object *o = objects; o < objects + OBJECTS; o++)
        atomic_fetch_and(&o->holders, ~bits);
}

static uint64_t really_held(void) {
    uint64_t sum = 0;
    for (struct object *o = objects; o < objects + OBJECTS; o++)
        if ((atomic_load(&o->holders) & ((1u << CHILDREN) - 1)) != 0)
            sum += atomic_load(&o->bytes);
    return sum;
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    objects = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(objects != MAP_FAILED);
    imports = (atomic_ullong *)(objects + OBJECTS);
    left = imports + 1;
    for (uint64_t i = 0; i < OBJECTS; i++)
        atomic_store(&objects[i].number, i);
    pid_t child[CHILDREN];
    int status;
    for (int c = 0; c < CHILDREN; c++)
        child[c] = start(argv[1], c);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t before = atomic_load(imports);
        while (atomic_load(imports) < before + 20)
            sched_yield();
        for (int c = 0; c < CHILDREN; c++) {
            CHECK(kill(child[c], SIGSTOP) == 0);
            CHECK(waitpid(child[c], &status, WUNTRACED) == child[c] && WIFSTOPPED(status));
        }
        CHECK(really_held() <= LIMIT);
        int victim = round % CHILDREN;
        CHECK(kill(child[victim], SIGKILL) == 0 && waitpid(child[victim], NULL, 0) == child[victim]);
        bury(victim);
        child[victim] = start(argv[1], victim);
        for (int c = 0; c < CHILDREN; c++)
            CHECK(c == victim || kill(child[c], SIGCONT) == 0);
    }
    CHECK(atomic_load(left) > 0);
    // One process is left with what it has made and imported.
    for (int c = 1; c < CHILDREN; c++) {
        CHECK(kill(child[c], SIGKILL) == 0 && waitpid(child[c], NULL, 0) == child[c]);
        bury(c);
    }
    CHECK(kill(child[0], SIGSTOP) == 0 && waitpid(child[0], &status, WUNTRACED) == child[0]);
    attach(argv[1]);
    vgpu_audit(&process);
    CHECK(vgpu_charged(&process, 0) >= really_held());
    CHECK(kill(child[0], SIGKILL) == 0 && waitpid(child[0], NULL, 0) == child[0]);
    CHECK(vgpu_charge(&process, 0, LIMIT));
    CHECK(!vgpu_charge(&process, 0, 1));
    vgpu_uncharge(&process, 0, LIMIT);
    CHECK(vgpu_charged(&process, 0) == 0);
    return 0;
}
