// SPDX-License-Identifier: Apache-2.0
//
// The table against a plain array: random puts, takes and visits by one thread,
// then threads that each own a part of the keys.

#include "check.h"
#include "runtime/table.h"

#include <pthread.h>
#include <sys/resource.h>

#define KEYS 20000
#define THREADS 4

void vgpu_test_step(void) {}

static struct vgpu_table table;
static struct vgpu_entry model[KEYS];
static int owners[3];

static uint64_t key_of(uint64_t i) { return (i + 1) * 512; }

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

// One random step on the keys from `first` on, `step` apart.
static void step(uint64_t *random, uint64_t first, uint64_t apart) {
    uint64_t i = next(random) % (KEYS / apart) * apart + first;
    struct vgpu_entry got = {0};
    bool there = model[i].key != 0;
    switch (next(random) % 3) {
    case 0: {
        struct vgpu_entry entry = {key_of(i), next(random), &owners[next(random) % 3]};
        CHECK(vgpu_table_put(&table, &entry, &got));
        CHECK((got.key != 0) == there && (!there || got.value == model[i].value));
        model[i] = entry;
        break;
    }
    case 1:
        CHECK(vgpu_table_take(&table, key_of(i), &got) == there);
        CHECK(!there || got.value == model[i].value);
        model[i].key = 0;
        break;
    default:
        CHECK(vgpu_table_get(&table, key_of(i), &got) == there);
        CHECK(!there || (got.value == model[i].value && got.owner == model[i].owner));
    }
}

static void *run(void *argument) {
    uint64_t part = (uint64_t)(uintptr_t)argument, random = 88172645463325252u + part;
    for (int i = 0; i < 300000; i++)
        step(&random, part, THREADS);
    return NULL;
}

// Odd values go, even ones change owner.
static bool visit(void *with, struct vgpu_entry *entry) {
    entry->owner = with;
    return entry->value % 2 == 0;
}

// Without memory to grow, what is there already can be put anew.
static void puts_anew_without_memory(void) {
    static struct vgpu_table full;
    static bool there[KEYS];
    struct vgpu_entry old;
    struct rlimit before, none;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    none = (struct rlimit){1, before.rlim_max};
    int refused = 0, lost = 0;
    for (uint64_t i = 0; i < KEYS; i++) {
        if (i == KEYS / 2)
            CHECK(setrlimit(RLIMIT_AS, &none) == 0);
        there[i] = vgpu_table_put(&full, &(struct vgpu_entry){key_of(i), 1, NULL}, &old);
        refused += !there[i];
    }
    for (uint64_t i = 0; i < KEYS; i++)
        lost += there[i] && (!vgpu_table_put(&full, &(struct vgpu_entry){key_of(i), 2, NULL}, &old) || old.value != 1);
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    CHECK(refused > 0 && lost == 0);
}

int main(void) {
    puts_anew_without_memory();
    uint64_t random = 88172645463325252u;
    struct vgpu_entry got;
    CHECK(!vgpu_table_take(&table, 0, &got) && !vgpu_table_take(&table, 512, &got));
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 50000; i++)
            step(&random, 0, 1);
        vgpu_table_visit(&table, &owners[0], visit, &owners[1]);
        for (uint64_t i = 0; i < KEYS; i++) {
            if (model[i].key != 0 && model[i].owner == &owners[0]) {
                model[i].owner = &owners[1];
                model[i].key = model[i].value % 2 == 0 ? model[i].key : 0;
            }
            CHECK(vgpu_table_get(&table, key_of(i), &got) == (model[i].key != 0));
            CHECK(model[i].key == 0 || (got.value == model[i].value && got.owner == model[i].owner));
        }
    }
    pthread_t threads[THREADS];
    for (uintptr_t t = 0; t < THREADS; t++)
        CHECK(pthread_create(&threads[t], NULL, run, (void *)t) == 0);
    for (int t = 0; t < THREADS; t++)
        CHECK(pthread_join(threads[t], NULL) == 0);
    return 0;
}
