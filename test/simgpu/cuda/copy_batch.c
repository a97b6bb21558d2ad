// SPDX-License-Identifier: Apache-2.0
//
// copy_batch.c: copies in batches and with attributes.
//
// Invariants:
// - Attributes say when the source may be read and what may overlap; everything here is
//   read at once and overlaps nothing, so they are only looked at for being there.
// - Nothing of a batch is copied on the legacy default stream, as the driver says.
#define _GNU_SOURCE
#include "internal.h"

static CUresult listed(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count) {
    for (size_t i = 0; i < count; i++) CHECK(copy_bytes(to[i], from[i], sizes[i]));
    return CUDA_SUCCESS;
}

static size_t sum_of(const size_t *sizes, size_t count) {
    size_t sum = 0;
    for (size_t i = 0; i < count; i++) sum += sizes[i];
    return sum;
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                               CUstream stream) {
    NEED(to && from && sizes && count && attributes && indices && attribute_count && indices[0] == 0);
    NEED(stream && stream != CU_STREAM_LEGACY);
    LATER(stream, CU_GRAPH_NODE_TYPE_MEMCPY, sum_of(sizes, count), listed(to, from, sizes, count));
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attributes, size_t *indices, size_t attribute_count,
                            size_t *failed, CUstream stream) {
    if (failed) *failed = SIZE_MAX;
    return cuMemcpyBatchAsync_v2(to, from, sizes, count, attributes, indices, attribute_count, stream);
}

CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t n,
                                     CUmemcpyAttributes *attributes, CUstream stream) {
    NEED(attributes);
    return cuMemcpyBatchAsync_v2(&to, &from, &n, 1, attributes, &(size_t){0}, 1, stream);
}

static size_t bytes_of(const CUDA_MEMCPY3D_BATCH_OP *op) {
    return op->extent.width * op->extent.height * op->extent.depth;
}

// Between pointers only, and in bytes; rows side by side or as long as is said.
static CUresult solid(const CUDA_MEMCPY3D_BATCH_OP *op) {
    NEED(op->src.type == CU_MEMCPY_OPERAND_TYPE_POINTER && op->dst.type == CU_MEMCPY_OPERAND_TYPE_POINTER);
    size_t from_row = op->src.op.ptr.rowLength ? op->src.op.ptr.rowLength : op->extent.width;
    size_t to_row = op->dst.op.ptr.rowLength ? op->dst.op.ptr.rowLength : op->extent.width;
    for (size_t row = 0; row < op->extent.height * op->extent.depth; row++)
        CHECK(copy_bytes(op->dst.op.ptr.ptr + row * to_row, op->src.op.ptr.ptr + row * from_row, op->extent.width));
    return CUDA_SUCCESS;
}

static CUresult all_solid(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count) {
    for (size_t i = 0; i < count; i++) CHECK(solid(&list[i]));
    return CUDA_SUCCESS;
}

static size_t sum_solid(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count) {
    size_t sum = 0;
    for (size_t i = 0; i < count; i++) sum += bytes_of(&list[i]);
    return sum;
}

CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags,
                                 CUstream stream) {
    NEED(count && list && !flags && stream && stream != CU_STREAM_LEGACY);
    LATER(stream, CU_GRAPH_NODE_TYPE_MEMCPY, sum_solid(list, count), all_solid(list, count));
}

CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,
                              unsigned long long flags, CUstream stream) {
    if (failed) *failed = SIZE_MAX;
    return cuMemcpy3DBatchAsync_v2(count, list, flags, stream);
}

CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream stream) {
    return cuMemcpy3DBatchAsync_v2(1, op, flags, stream);
}

PTSZ(cuMemcpyBatchAsync);
PTSZ(cuMemcpyBatchAsync_v2);
PTSZ(cuMemcpyWithAttributesAsync);
PTSZ(cuMemcpy3DBatchAsync);
PTSZ(cuMemcpy3DBatchAsync_v2);
PTSZ(cuMemcpy3DWithAttributesAsync);
