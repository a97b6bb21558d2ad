// SPDX-License-Identifier: Apache-2.0
//
// copy_api.h: copies and fills.

CU_PTDS(cuMemcpy, CUdeviceptr dst, CUdeviceptr src, size_t ByteCount);
CU_PTDS(cuMemcpyPeer, CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
        CUcontext srcContext, size_t ByteCount);
CU_PTDS(cuMemcpyHtoD_v2, CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount);
CU_PTDS(cuMemcpyDtoH_v2, void *dstHost, CUdeviceptr srcDevice, size_t ByteCount);
CU_PTDS(cuMemcpyDtoD_v2, CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount);
CU_PTDS(cuMemcpyDtoA_v2, CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice,
        size_t ByteCount);
CU_PTDS(cuMemcpyAtoD_v2, CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset,
        size_t ByteCount);
CU_PTDS(cuMemcpyHtoA_v2, CUarray dstArray, size_t dstOffset, const void *srcHost,
        size_t ByteCount);
CU_PTDS(cuMemcpyAtoH_v2, void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount);
CU_PTDS(cuMemcpyAtoA_v2, CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
        size_t ByteCount);
CU_PTDS(cuMemcpy2D_v2, const CUDA_MEMCPY2D *pCopy);
CU_PTDS(cuMemcpy2DUnaligned_v2, const CUDA_MEMCPY2D *pCopy);
CU_PTDS(cuMemcpy3D_v2, const CUDA_MEMCPY3D *pCopy);
CU_PTDS(cuMemcpy3DPeer, const CUDA_MEMCPY3D_PEER *pCopy);

CU_PTSZ(cuMemcpyAsync, CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream);
CU_PTSZ(cuMemcpyPeerAsync, CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
        CUcontext srcContext, size_t ByteCount, CUstream hStream);
CU_PTSZ(cuMemcpyHtoDAsync_v2, CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
        CUstream hStream);
CU_PTSZ(cuMemcpyDtoHAsync_v2, void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
        CUstream hStream);
CU_PTSZ(cuMemcpyDtoDAsync_v2, CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
        CUstream hStream);
CU_PTSZ(cuMemcpyHtoAAsync_v2, CUarray dstArray, size_t dstOffset, const void *srcHost,
        size_t ByteCount, CUstream hStream);
CU_PTSZ(cuMemcpyAtoHAsync_v2, void *dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
        CUstream hStream);
CU_PTSZ(cuMemcpy2DAsync_v2, const CUDA_MEMCPY2D *pCopy, CUstream hStream);
CU_PTSZ(cuMemcpy3DAsync_v2, const CUDA_MEMCPY3D *pCopy, CUstream hStream);
CU_PTSZ(cuMemcpy3DPeerAsync, const CUDA_MEMCPY3D_PEER *pCopy, CUstream hStream);
CU_PTSZ(cuMemcpyBatchAsync, CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
        CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, size_t *failIdx,
        CUstream hStream);
CU_PTSZ(cuMemcpyBatchAsync_v2, CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
        CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs, CUstream hStream);
CU_PTSZ(cuMemcpyWithAttributesAsync, CUdeviceptr dst, CUdeviceptr src, size_t size,
        CUmemcpyAttributes *attr, CUstream hStream);
CU_PTSZ(cuMemcpy3DBatchAsync, size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList, size_t *failIdx,
        unsigned long long flags, CUstream hStream);
CU_PTSZ(cuMemcpy3DBatchAsync_v2, size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
        unsigned long long flags, CUstream hStream);
CU_PTSZ(cuMemcpy3DWithAttributesAsync, CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags,
        CUstream hStream);

CU_PTDS(cuMemsetD8_v2, CUdeviceptr dstDevice, unsigned char uc, size_t N);
CU_PTDS(cuMemsetD16_v2, CUdeviceptr dstDevice, unsigned short us, size_t N);
CU_PTDS(cuMemsetD32_v2, CUdeviceptr dstDevice, unsigned int ui, size_t N);
CU_PTDS(cuMemsetD2D8_v2, CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
        size_t Height);
CU_PTDS(cuMemsetD2D16_v2, CUdeviceptr dstDevice, size_t dstPitch, unsigned short us, size_t Width,
        size_t Height);
CU_PTDS(cuMemsetD2D32_v2, CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
        size_t Height);
CU_PTSZ(cuMemsetD8Async, CUdeviceptr dstDevice, unsigned char uc, size_t N, CUstream hStream);
CU_PTSZ(cuMemsetD16Async, CUdeviceptr dstDevice, unsigned short us, size_t N, CUstream hStream);
CU_PTSZ(cuStreamWriteValue32, CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags);
CU_PTSZ(cuStreamWriteValue32_v2, CUstream stream, CUdeviceptr addr, cuuint32_t value,
        unsigned int flags);
CU_PTSZ(cuMemsetD32Async, CUdeviceptr dstDevice, unsigned int ui, size_t N, CUstream hStream);
CU_PTSZ(cuMemsetD2D8Async, CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc, size_t Width,
        size_t Height, CUstream hStream);
CU_PTSZ(cuMemsetD2D16Async, CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
        size_t Width, size_t Height, CUstream hStream);
CU_PTSZ(cuMemsetD2D32Async, CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui, size_t Width,
        size_t Height, CUstream hStream);
