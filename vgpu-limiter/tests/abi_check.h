// SPDX-License-Identifier: Apache-2.0
//
// Compiled by a test beside a full cuda.h and nvml.h: the library's own
// declarations say the same.

#include "cuda.h"
#include "nvml.h"

#include "vgpu_cuda.h"
#include "vgpu_nvml.h"

#define VALUE(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #theirs)
#define SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #theirs)
#define FIELD(ours, field, theirs, other)                                       \
    _Static_assert(offsetof(ours, field) == offsetof(theirs, other) &&          \
                       sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->other), \
                   #theirs "." #other)

VALUE(CU_OK, CUDA_SUCCESS);
VALUE(CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
VALUE(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
VALUE(CU_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
VALUE(CU_NOT_READY, CUDA_ERROR_NOT_READY);
VALUE(CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
VALUE(CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
VALUE(CU_PROC_PER_THREAD, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
VALUE(CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
VALUE(CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
VALUE(CU_ALLOC_MANAGED, CU_MEM_ALLOCATION_TYPE_MANAGED);
VALUE(CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
VALUE(CU_POOL_RESERVED, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
VALUE(CU_OPERATION_MAP, CU_MEM_OPERATION_TYPE_MAP);
VALUE(CU_GRAPH_USED, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
VALUE(CU_GRAPH_RESERVED, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
VALUE(CU_NODE_GRAPH, CU_GRAPH_NODE_TYPE_GRAPH);
VALUE(CU_NODE_ALLOC, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
VALUE(CU_INSTANTIATE_AUTO_FREE, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
VALUE(CU_INSTANTIATE_UPLOAD, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
FIELD(struct cu_pool_props, location, CUmemPoolProps, location);
SIZE(struct cu_alloc_node, CUDA_MEM_ALLOC_NODE_PARAMS);
FIELD(struct cu_alloc_node, bytes, CUDA_MEM_ALLOC_NODE_PARAMS, bytesize);
FIELD(struct cu_node_params, type, CUgraphNodeParams, type);
FIELD(struct cu_node_params, alloc, CUgraphNodeParams, params.alloc);
_Static_assert(offsetof(CUDA_GRAPH_INSTANTIATE_PARAMS, flags) == 0, "flags first");
VALUE(CU_ARRAY_LAYERED, CUDA_ARRAY3D_LAYERED);
VALUE(CU_ARRAY_CUBEMAP, CUDA_ARRAY3D_CUBEMAP);
VALUE(CU_ARRAY_SPARSE, CUDA_ARRAY3D_SPARSE);
VALUE(CU_ARRAY_DEFERRED, CUDA_ARRAY3D_DEFERRED_MAPPING);

SIZE(cu_result, CUresult);
SIZE(cu_device, CUdevice);
SIZE(cu_ptr, CUdeviceptr);
SIZE(cu_handle, CUmemGenericAllocationHandle);
SIZE(cu_ctx, CUcontext);
SIZE(cu_uuid, CUuuid);
SIZE(struct cu_location, CUmemLocation);
FIELD(struct cu_location, type, CUmemLocation, type);
FIELD(struct cu_location, id, CUmemLocation, id);
SIZE(struct cu_alloc_prop, CUmemAllocationProp);
FIELD(struct cu_alloc_prop, location, CUmemAllocationProp, location);
SIZE(struct cu_pool_props, CUmemPoolProps);
FIELD(struct cu_pool_props, location, CUmemPoolProps, location);
SIZE(struct cu_array_desc, CUDA_ARRAY_DESCRIPTOR);
FIELD(struct cu_array_desc, width, CUDA_ARRAY_DESCRIPTOR, Width);
FIELD(struct cu_array_desc, height, CUDA_ARRAY_DESCRIPTOR, Height);
FIELD(struct cu_array_desc, format, CUDA_ARRAY_DESCRIPTOR, Format);
FIELD(struct cu_array_desc, channels, CUDA_ARRAY_DESCRIPTOR, NumChannels);
SIZE(struct cu_array3d_desc, CUDA_ARRAY3D_DESCRIPTOR);
FIELD(struct cu_array3d_desc, depth, CUDA_ARRAY3D_DESCRIPTOR, Depth);
FIELD(struct cu_array3d_desc, format, CUDA_ARRAY3D_DESCRIPTOR, Format);
FIELD(struct cu_array3d_desc, channels, CUDA_ARRAY3D_DESCRIPTOR, NumChannels);
FIELD(struct cu_array3d_desc, flags, CUDA_ARRAY3D_DESCRIPTOR, Flags);
VALUE(CU_SHARE_DESCRIPTOR, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
VALUE(CU_SHARE_FABRIC, CU_MEM_HANDLE_TYPE_FABRIC);
VALUE(CU_FABRIC_BYTES, sizeof(CUmemFabricHandle));
VALUE(CU_POINTER_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SIZE(struct cu_handle_bytes, CUipcMemHandle);
SIZE(struct cu_handle_bytes, CUmemPoolPtrExportData);
SIZE(struct cu_external_desc, CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
FIELD(struct cu_external_desc, bytes, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size);
SIZE(struct cu_requirements, CUDA_ARRAY_MEMORY_REQUIREMENTS);
FIELD(struct cu_requirements, size, CUDA_ARRAY_MEMORY_REQUIREMENTS, size);
VALUE(CU_RESOURCE_ARRAY, CU_RESOURCE_TYPE_ARRAY);
VALUE(CU_RESOURCE_MIPMAP, CU_RESOURCE_TYPE_MIPMAPPED_ARRAY);
VALUE(CU_SUBRESOURCE_TAIL, CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL);
SIZE(struct cu_sparse_properties, CUDA_ARRAY_SPARSE_PROPERTIES);
FIELD(struct cu_sparse_properties, tail_bytes, CUDA_ARRAY_SPARSE_PROPERTIES, miptailSize);
SIZE(struct cu_array_map, CUarrayMapInfo);
FIELD(struct cu_array_map, texels.extent[0], CUarrayMapInfo, subresource.sparseLevel.extentWidth);
FIELD(struct cu_array_map, tail.bytes, CUarrayMapInfo, subresource.miptail.size);
FIELD(struct cu_array_map, operation, CUarrayMapInfo, memOperationType);
FIELD(struct cu_array_map, handle, CUarrayMapInfo, memHandle.memHandle);
SIZE(struct cu_launch_config, CUlaunchConfig);
FIELD(struct cu_launch_config, stream, CUlaunchConfig, hStream);
SIZE(struct cu_launch_params, CUDA_LAUNCH_PARAMS);
FIELD(struct cu_launch_params, stream, CUDA_LAUNCH_PARAMS, hStream);
SIZE(struct cu_copy2d, CUDA_MEMCPY2D);
FIELD(struct cu_copy2d, width, CUDA_MEMCPY2D, WidthInBytes);
FIELD(struct cu_copy2d, height, CUDA_MEMCPY2D, Height);
SIZE(struct cu_copy3d, CUDA_MEMCPY3D);
FIELD(struct cu_copy3d, width, CUDA_MEMCPY3D, WidthInBytes);
FIELD(struct cu_copy3d, depth, CUDA_MEMCPY3D, Depth);
SIZE(struct cu_copy3d, CUDA_MEMCPY3D_PEER);
FIELD(struct cu_copy3d, width, CUDA_MEMCPY3D_PEER, WidthInBytes);
SIZE(struct cu_copy_op, CUDA_MEMCPY3D_BATCH_OP);
FIELD(struct cu_copy_op, width, CUDA_MEMCPY3D_BATCH_OP, extent.width);
FIELD(struct cu_copy_op, depth, CUDA_MEMCPY3D_BATCH_OP, extent.depth);

VALUE(NV_OK, NVML_SUCCESS);
VALUE(NV_INVALID_ARGUMENT, NVML_ERROR_INVALID_ARGUMENT);
VALUE(NV_NO_PERMISSION, NVML_ERROR_NO_PERMISSION);
VALUE(NV_NOT_FOUND, NVML_ERROR_NOT_FOUND);
SIZE(struct nv_sample, nvmlProcessUtilizationSample_t);
FIELD(struct nv_sample, pid, nvmlProcessUtilizationSample_t, pid);
SIZE(struct nv_busy, nvmlProcessUtilizationInfo_v1_t);
FIELD(struct nv_busy, pid, nvmlProcessUtilizationInfo_v1_t, pid);
SIZE(struct nv_busy_list, nvmlProcessesUtilizationInfo_v1_t);
FIELD(struct nv_busy_list, count, nvmlProcessesUtilizationInfo_v1_t, processSamplesCount);
FIELD(struct nv_busy_list, processes, nvmlProcessesUtilizationInfo_v1_t, procUtilArray);
VALUE(NV_INSUFFICIENT_SIZE, NVML_ERROR_INSUFFICIENT_SIZE);
VALUE(NV_FUNCTION_NOT_FOUND, NVML_ERROR_FUNCTION_NOT_FOUND);
VALUE(NV_MEMORY, NVML_ERROR_MEMORY);
VALUE(NV_UUID_CHARS, NVML_DEVICE_UUID_V2_BUFFER_SIZE);
VALUE(NV_PROCESS_COMPUTE, NVML_PROCESS_MODE_COMPUTE);
VALUE(NV_PROCESS_ALL, NVML_PROCESS_MODE_ALL);
SIZE(struct nv_memory, nvmlMemory_t);
FIELD(struct nv_memory, free, nvmlMemory_t, free);
SIZE(struct nv_memory_v2, nvmlMemory_v2_t);
FIELD(struct nv_memory_v2, free, nvmlMemory_v2_t, free);
FIELD(struct nv_memory_v2, used, nvmlMemory_v2_t, used);
SIZE(struct nv_process_v1, nvmlProcessInfo_v1_t);
SIZE(struct nv_process_v2, nvmlProcessInfo_v2_t);
FIELD(struct nv_process_v2, gpu_instance, nvmlProcessInfo_v2_t, gpuInstanceId);
SIZE(struct nv_process_detail, nvmlProcessDetail_v1_t);
SIZE(struct nv_process_detail_list, nvmlProcessDetailList_v1_t);
FIELD(struct nv_process_detail_list, processes, nvmlProcessDetailList_v1_t, procArray);
