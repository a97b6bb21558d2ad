// SPDX-License-Identifier: Apache-2.0
//
// texture.c: texture and surface objects: numbers that kernels are given. Nothing is read
// through them here, so that what they are made of is not kept.
#include "internal.h"

static _Atomic cuuint64_t objects;

static CUresult object_create(CUtexObject *object, const void *resource, const void *view) {
    CUcontext ctx;
    NEED(object && resource && view);
    CHECK(need_context(&ctx));
    *object = atomic_fetch_add(&objects, 1) + 1;
    return CUDA_SUCCESS;
}

static CUresult object_destroy(cuuint64_t object) {
    CUcontext ctx;
    NEED(object && object <= atomic_load(&objects));
    return need_context(&ctx);
}

CUresult cuTexObjectCreate(CUtexObject *object, const void *resource, const void *texture, const void *view) {
    (void)view;
    return object_create(object, resource, texture);
}
CUresult cuTexObjectDestroy(CUtexObject object) { return object_destroy(object); }

CUresult cuSurfObjectCreate(CUsurfObject *object, const void *resource) { return object_create(object, resource, resource); }
CUresult cuSurfObjectDestroy(CUsurfObject object) { return object_destroy(object); }
