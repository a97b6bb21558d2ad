// SPDX-License-Identifier: Apache-2.0
//
// What all of these programs need: calls that must not fail, and the time.

#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline void must(CUresult result) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "CUDA error %d\n", (int)result);
        exit(1);
    }
}

// ns of CLOCK_MONOTONIC.
static inline unsigned long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (unsigned long long)t.tv_sec * 1000000000 + (unsigned long long)t.tv_nsec;
}
