// SPDX-License-Identifier: Apache-2.0
//
// Part of calls: sparse arrays, in tiles of 64 × 64 texels of 16 bytes.

#define TILE 64

static int make_tiles(int place, size_t bytes) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                .allocFlags = {.usage = CU_MEM_CREATE_USAGE_TILE_POOL}};
    return cuMemCreate(&handle[place], bytes, &prop, 0);
}

// So many tiles across and down; a mipmapped one if it has levels.
static int make_sparse(int place, size_t across, size_t down, int levels) {
    CUDA_ARRAY3D_DESCRIPTOR desc = {across * TILE, down * TILE, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE};
    return levels > 0 ? (int)cuMipmappedArrayCreate(&mipmap[place], &desc, (unsigned)levels)
                      : (int)cuArray3DCreate_v2(&array[place], &desc);
}

static CUarrayMapInfo operation(CUmemGenericAllocationHandle from) {
    return (CUarrayMapInfo){.memOperationType = from != 0 ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP,
                            .memHandle = {from},
                            .deviceBitMask = 1};
}

// Columns of an array, all the way down, or of a mipmapped one's first level if that
// is what there is.
static int map_tiles(int place, CUmemGenericAllocationHandle from, int first, int columns, int on) {
    CUDA_ARRAY3D_DESCRIPTOR desc;
    CUarrayMapInfo map = operation(from);
    CUarray level = array[place];
    if (level == NULL && cuMipmappedArrayGetLevel(&level, mipmap[place], 0) != 0)
        return -1;
    if (array[place] == NULL) {
        map.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
        map.resource.mipmap = mipmap[place];
    } else {
        map.resource.array = array[place];
    }
    cuArray3DGetDescriptor_v2(&desc, level);
    map.subresource.sparseLevel.offsetX = (unsigned)first * TILE;
    map.subresource.sparseLevel.extentWidth = (unsigned)columns * TILE;
    map.subresource.sparseLevel.extentHeight = (unsigned)desc.Height;
    map.subresource.sparseLevel.extentDepth = 1;
    return cuMemMapArrayAsync(&map, 1, stream[on]);
}

static int map_tail(int place, CUmemGenericAllocationHandle from) {
    CUDA_ARRAY_SPARSE_PROPERTIES properties;
    int result = cuMipmappedArrayGetSparseProperties(&properties, mipmap[place]);
    CUarrayMapInfo map = operation(from);
    map.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    map.resource.mipmap = mipmap[place];
    map.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    map.subresource.miptail.size = properties.miptailSize;
    return result != 0 ? result : (int)cuMemMapArrayAsync(&map, 1, stream[0]);
}
