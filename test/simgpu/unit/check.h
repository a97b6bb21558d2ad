// SPDX-License-Identifier: Apache-2.0
//
// check.h: the assertion of the C tests: says what is wrong and where, and ends.
#ifndef VERNIER_SIMGPU_UNIT_CHECK_H
#define VERNIER_SIMGPU_UNIT_CHECK_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SAME(got, want)                                                                       \
    do {                                                                                      \
        long long got_ = (long long)(got), want_ = (long long)(want);                         \
        if (got_ != want_) {                                                                  \
            printf("%s:%d: %s is %lld, want %lld\n", __FILE__, __LINE__, #got, got_, want_);  \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

#define TRUE(condition)                                                       \
    do {                                                                      \
        if (!(condition)) {                                                   \
            printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);  \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

#endif
