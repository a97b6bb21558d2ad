// SPDX-License-Identifier: Apache-2.0
//
// Part of storm: how a thing of each kind comes to be.

static size_t some_bytes(void) { return below(4) == 0 ? 1 + below(4000) : (1 + below(1500)) * KIB; }
static CUstream some_stream(int device) { return stream[device][below(3)]; }

static const char *some_image(void) {
    static _Thread_local char text[96];
    snprintf(text, sizeof text, "simgpu-module 1\nkernel k 1000\nglobal g %zu\n", (size_t)(1 + below(256)) * KIB);
    return text;
}

static bool make_array(struct thing *t) {
    unsigned flags = below(4) == 0 ? CUDA_ARRAY3D_LAYERED : 0;
    CUDA_ARRAY3D_DESCRIPTOR desc = {1 + below(300), below(200), below(8), CU_AD_FORMAT_FLOAT, 1u << below(3), flags};
    CUDA_ARRAY_DESCRIPTOR flat = {desc.Width, desc.Height, CU_AD_FORMAT_HALF, 2};
    if (t->kind == MIPMAP)
        return TRY(cuMipmappedArrayCreate, &t->mipmap, &desc, 1 + below(9));
    return below(2) ? TRY(cuArray3DCreate_v2, &t->array, &desc) : TRY(cuArrayCreate_v2, &t->array, &flat);
}

static bool make_virtual(struct thing *t) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, t->device}};
    t->handles = TRY(cuMemCreate, &t->handle, GRANULE * (1 + below(2)), &prop, 0);
    return t->handles != 0;
}

static bool make_graph(struct thing *t) {
    CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, t->device}},
                                        .bytesize = some_bytes()};
    CUgraph graph;
    CUgraphNode node, end;
    bool frees = below(2) != 0;
    bool made = TRY(cuGraphCreate, &graph, 0) && TRY(cuGraphAddMemAllocNode, &node, graph, NULL, 0, &alloc);
    if (made && frees)
        made = TRY(cuGraphAddMemFreeNode, &end, graph, &node, 1, alloc.dptr);
    made = made && TRY(cuGraphInstantiateWithFlags, &t->exec, graph,
                       below(2) ? CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD : 0);
    TRY(cuGraphDestroy, graph);
    t->ptr = frees ? 0 : alloc.dptr;
    t->live = 0;
    return made;
}

// A pool of its own with an allocation in it that outlives it.
static bool make_pool(struct thing *t) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, t->device}};
    bool made = TRY(cuMemPoolCreate, &t->pool, &props);
    if (made && !TRY(cuMemAllocFromPoolAsync, &t->ptr, some_bytes(), t->pool, some_stream(t->device))) {
        TRY(cuMemPoolDestroy, t->pool);
        made = false;
    }
    t->live = 1;
    return made;
}

// A context with memory that goes with it.
static bool make_context(struct thing *t) {
    CUcontext popped;
    CUdeviceptr inside;
    if (!TRY(cuCtxCreate_v2, &t->context, 0, t->device))
        return false;
    TRY(cuMemAlloc_v2, &inside, some_bytes());
    return TRY(cuCtxPopCurrent_v2, &popped);
}

static bool make_multicast(struct thing *t) {
    CUmulticastObjectProp prop = {.numDevices = 1, .size = GRANULE};
    if (!make_virtual(t))
        return false;
    bool made = TRY(cuMulticastCreate, &t->object, &prop) && TRY(cuMulticastAddDevice, t->object, t->device) &&
                TRY(cuMulticastBindMem, t->object, 0, t->handle, 0, GRANULE, 0);
    TRY(cuMemRelease, t->handle); // what is bound stays
    return made;
}

// A sparse array, mipmapped or not, of 4 layers of 4 × 4 tiles.
static bool make_sparse(struct thing *t) {
    CUDA_ARRAY3D_DESCRIPTOR desc = {256, 256, 4, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_LAYERED};
    t->live = (int)below(2);
    return t->live ? TRY(cuMipmappedArrayCreate, &t->mipmap, &desc, 9) : TRY(cuArray3DCreate_v2, &t->array, &desc);
}

// Maps or unmaps some of it. What the array has had stays charged until it goes, so the
// memory that it has stays there: either its handle does, or what is mapped of it.
static void change_sparse(struct thing *t) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, t->device},
                                .allocFlags = {.usage = CU_MEM_CREATE_USAGE_TILE_POOL}};
    CUarrayMapInfo map[2];
    if (t->map[0] != 0) // it stays as it is
        return;
    if (t->handles == 0)
        t->handles = TRY(cuMemCreate, &t->handle, GRANULE, &prop, 0);
    bool last = t->handles != 0 && below(8) == 0;
    for (int i = 0; i < 2; i++) {
        map[i] = (CUarrayMapInfo){.deviceBitMask = 1u << t->device};
        map[i].resourceType = t->live ? CU_RESOURCE_TYPE_MIPMAPPED_ARRAY : CU_RESOURCE_TYPE_ARRAY;
        map[i].resource.array = t->array;
        map[i].memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
        if (t->handles != 0 && (last || below(2))) {
            map[i].memOperationType = CU_MEM_OPERATION_TYPE_MAP;
            map[i].memHandle.memHandle = t->handle;
        }
        if (t->live && below(3) == 0) {
            map[i].subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
            map[i].subresource.miptail.layer = below(4);
            map[i].subresource.miptail.size = 64 * KIB;
            continue;
        }
        unsigned x = below(4), y = below(4), level = t->live && below(3) == 0;
        map[i].subresource.sparseLevel = (__typeof__(map[i].subresource.sparseLevel)){
            level, below(4), (x >> level) * 64, (y >> level) * 64, 0, 64 * ((4 - x + level) >> level), 64, 1};
    }
    if (TRY(cuMemMapArrayAsync, map, 1 + below(2), some_stream(t->device)) && last) {
        t->map[0] = 1;
        t->handles -= TRY(cuMemRelease, t->handle);
    }
}

static bool make(struct thing *t) {
    size_t pitch;
    switch (t->kind) {
    case PLAIN:
        switch (below(4)) {
        case 0:
            return TRY(cuMemAllocPitch_v2, &t->ptr, &pitch, 1 + below(3000), 1 + below(300), 4);
        case 1:
            return TRY(cuMemAllocManaged, &t->ptr, some_bytes(), CU_MEM_ATTACH_GLOBAL);
        }
        return TRY(cuMemAlloc_v2, &t->ptr, some_bytes());
    case ASYNC:
        if (below(2))
            return TRY(cuMemAllocAsync, &t->ptr, some_bytes(), some_stream(t->device));
        return TRY(cuMemAllocFromPoolAsync, &t->ptr, some_bytes(), lasting[below(2)][below(2)], some_stream(t->device));
    case VIRTUAL:
        return make_virtual(t);
    case ARRAY:
    case MIPMAP:
        return make_array(t);
    case MODULE:
        return TRY(cuModuleLoadData, &t->module, some_image());
    case LIBRARY:
        return TRY(cuLibraryLoadData, &t->library, some_image(), NULL, NULL, 0, NULL, NULL, 0);
    case CONTEXT:
        return make_context(t);
    case GRAPH:
        return make_graph(t);
    case POOL:
        return make_pool(t);
    case BORROWED:
        return borrow(t);
    case RECEIVED:
        return receive(t);
    case MULTICAST:
        return make_multicast(t);
    case SPARSE:
        return make_sparse(t);
    case NOTHING:
        break;
    }
    return false;
}
