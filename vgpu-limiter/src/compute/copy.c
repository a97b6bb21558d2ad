// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills. The device's time that they take is the container's, as that of
// kernels is; what they take while its kernels run counts once (busy_union.c).

#include "compute/throttle.h"

enum kind { ANY, PEER, FROM_HOST, TO_HOST, ON_DEVICE, RECTANGLE, BATCH, FILL };

static uint64_t copy_key(enum kind kind, uint64_t bytes) {
    return vgpu_cost_key(NULL, kind, bytes != 0 ? 64 - (unsigned)__builtin_clzll(bytes) : 0, UINT64_MAX);
}

static uint64_t listed(const size_t *sizes, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; sizes != NULL && i < n; i++)
        sum += sizes[i];
    return sum;
}

static uint64_t operations(const struct cu_copy_op *copies, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; copies != NULL && i < n; i++)
        sum += copies[i].width * copies[i].height * copies[i].depth;
    return sum;
}

#define LISTED listed(sizes, n)
#define OPERATIONS operations(copies, n)
#define FLAT (copy != NULL ? copy->width * copy->height : 0)
#define SOLID (copy != NULL ? copy->width * copy->height * copy->depth : 0)

#define COPY_NOW(symbol, kind, bytes, parameters, arguments, per_thread)             \
    cu_result symbol parameters {                                                    \
        if (!vgpu_launch_limited())                                                  \
            return VGPU_REAL(symbol) arguments;                                      \
        uint64_t key = copy_key(kind, bytes);                                        \
        if (vgpu_likely(vgpu_launch_paid(key, NULL, per_thread)))                    \
            return VGPU_REAL(symbol) arguments;                                      \
        struct vgpu_launch launch;                                                   \
        cu_result result = vgpu_launch_begin(&launch, key, 0, NULL, per_thread);     \
        if (vgpu_unlikely(result != CU_OK))                                          \
            return result;                                                           \
        vgpu_launch_part(&launch);                                                   \
        result = VGPU_REAL(symbol) arguments;                                        \
        vgpu_launch_rejoin(&launch);                                                 \
        return result;                                                               \
    }
#define NOW(symbol, kind, bytes, parameters, arguments)              \
    COPY_NOW(symbol, kind, bytes, parameters, arguments, false)      \
    COPY_NOW(symbol##_ptds, kind, bytes, parameters, arguments, true)

#define LATER(symbol, kind, bytes, parameters, arguments)                                                      \
    cu_result symbol parameters {                                                                              \
        VGPU_LIMITED(copy_key(kind, bytes), 0, stream, false, VGPU_REAL(symbol) arguments);                    \
    }                                                                                                          \
    cu_result symbol##_ptsz parameters {                                                                       \
        VGPU_LIMITED(copy_key(kind, bytes), 0, stream, true, VGPU_REAL(symbol##_ptsz) arguments);              \
    }
#include "runtime/copies.def"
