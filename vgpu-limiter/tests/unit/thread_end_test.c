// SPDX-License-Identifier: Apache-2.0
//
// thread_end_test COUNTERS: a thread tells what it has launched, as its thread stream is given to another
// stream or as it ends, while another thread destroys the context. All is charged, whichever
// comes first, nothing is used that has been freed, as a sanitizer sees, and no thread waits
// for ever that ends in a signal's handler.

#include "driver.h"

#include <pthread.h>
#include <unistd.h>

#define ROUNDS 3000
#define KEY 12345u

static char contexts[ROUNDS + 1][16] __attribute__((aligned(16)));
static char streams[2][1024] __attribute__((aligned(1024))); // that have the same thread stream
static pthread_barrier_t barrier;

static cu_result destroy(cu_ctx ctx) { return ctx != NULL ? CU_OK : CU_INVALID_VALUE; }

void vgpu_test_step(void) {}

static struct vgpu_stream_state *volatile kept; // where the sanitizer looks for what has been lost

static struct vgpu_thread_stream *open_stream(void *context, int stream) {
    current = (cu_ctx)context;
    CHECK(vgpu_thread_stream_open(&process, (cu_stream)(void *)streams[stream]) == CU_OK);
    return vgpu_thread_stream_of((cu_stream)(void *)streams[stream]);
}

static void launch_some(int round) {
    struct vgpu_thread_stream *mine = open_stream(contexts[round], 0);
    vgpu_cost_learn(&mine->state->ctx_state->costs, KEY, 2000, VGPU_APART);
    CHECK(vgpu_thread_stream_learn(mine, KEY));
    vgpu_thread_stream_allow(mine, KEY, 100000);
    for (int i = 0; i < 7; i++)
        CHECK(vgpu_launch_paid(KEY, mine->stream, false));
}

// Every other time the thread ends instead.
static void *launches(void *from) {
    for (int round = *(int *)from; round < ROUNDS; round++) {
        launch_some(round);
        pthread_barrier_wait(&barrier);
        if (round % 2 == 1)
            break;
        kept = open_stream(contexts[ROUNDS], 1)->state; // in a context that stays
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

// As a handler finds it that ends the thread, or the process. What it has launched is charged.
static void *is_interrupted(void *unused) {
    launch_some(ROUNDS);
    vgpu_lock(&process.launches.stream_lock);
    return unused;
}

int main(int argc, char **argv) {
    STAND_IN(cuCtxDestroy_v2, destroy);
    attach(argc >= 2 ? argv[1] : NULL, 0, 30);
    pthread_barrier_init(&barrier, NULL, 2);

    uint64_t *launched = &process.region.counters->header.device[0].launches;
    for (int from = 0; from < ROUNDS; from += 2) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, launches, &from) == 0);
        for (int round = from; round < from + 2; round++) {
            uint64_t before = vgpu_load(launched);
            pthread_barrier_wait(&barrier);
            CHECK(cuCtxDestroy_v2((cu_ctx)(void *)contexts[round]) == CU_OK);
            if (round % 2 == 0)
                pthread_barrier_wait(&barrier);
            else
                pthread_join(thread, NULL);
            CHECK(vgpu_load(launched) - before == 7);
        }
    }
    alarm(300); // who waits for ever
    pthread_t thread;
    uint64_t before = vgpu_load(launched);
    CHECK(pthread_create(&thread, NULL, is_interrupted, NULL) == 0);
    pthread_join(thread, NULL);
    CHECK(vgpu_load(launched) - before == 7);
    vgpu_lock_free(&process.launches.stream_lock);
    CHECK(cuCtxDestroy_v2((cu_ctx)(void *)contexts[ROUNDS]) == CU_OK);
    return 0;
}
