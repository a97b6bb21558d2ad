// SPDX-License-Identifier: Apache-2.0
//
// capture_test: of two threads that end the same capture only one has ended it, and
// launches are asked whether they are captured as long as another one is under way.

#include "check.h"
#include "compute/throttle.h"

#include <pthread.h>
#include <sched.h>

#define ROUNDS 200

static struct vgpu_process process;
static char a_stream, another;
static atomic_int status; // of the first stream
static pthread_barrier_t barrier;

static cu_result begin(cu_stream stream, int mode) {
    if ((void *)stream == &a_stream)
        atomic_store(&status, 1);
    return mode >= 0 ? CU_OK : CU_INVALID_VALUE;
}

// The other thread asks and ends it meanwhile, unless it can't.
static cu_result end(cu_stream stream, cu_graph *graph) {
    sched_yield();
    *graph = (cu_graph)(void *)&a_stream;
    return (void *)stream == &a_stream && atomic_exchange(&status, CU_CAPTURE_NONE) != CU_CAPTURE_NONE ? CU_OK : CU_INVALID_VALUE;
}
static cu_result is_capturing(cu_stream stream, int *now) {
    *now = (void *)stream == &a_stream ? atomic_load(&status) : 1;
    sched_yield();
    return CU_OK;
}

void vgpu_test_step(void) {}

static void *ends(void *unused) {
    cu_graph graph;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&barrier);
        cuStreamEndCapture((cu_stream)(void *)&a_stream, &graph);
        pthread_barrier_wait(&barrier);
    }
    return unused;
}

int main(void) {
    pthread_t other;
    cu_graph graph;
    atomic_store(&vgpu_reals[VGPU_cuStreamBeginCapture_v2], (void *)begin);
    atomic_store(&vgpu_reals[VGPU_cuStreamEndCapture], (void *)end);
    atomic_store(&vgpu_reals[VGPU_cuStreamIsCapturing], (void *)is_capturing);
    atomic_store(&vgpu_process_page, &process);
    pthread_barrier_init(&barrier, NULL, 2);
    CHECK(cuStreamBeginCapture_v2((cu_stream)(void *)&another, 0) == CU_OK);
    CHECK(pthread_create(&other, NULL, ends, NULL) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(cuStreamBeginCapture_v2((cu_stream)(void *)&a_stream, 0) == CU_OK);
        CHECK(atomic_load(&process.launches.captures) == 2);
        pthread_barrier_wait(&barrier);
        cuStreamEndCapture((cu_stream)(void *)&a_stream, &graph);
        pthread_barrier_wait(&barrier);
        CHECK(atomic_load(&process.launches.captures) == 1);
    }
    pthread_join(other, NULL);
    return 0;
}
