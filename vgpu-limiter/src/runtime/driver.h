// SPDX-License-Identifier: Apache-2.0
//
// The functions of hooks.def as the driver exports them, the ones that the library
// defines and the ones that it calls, with the addresses of the driver's own.

#ifndef VGPU_DRIVER_H
#define VGPU_DRIVER_H

#include "runtime/base.h"
#include "vgpu_cuda.h"
#include "vgpu_nvml.h"

#pragma GCC visibility push(default)

// A function and its form for the per-thread default stream.
#define VGPU_PAIR(symbol, ...)     \
    cu_result symbol(__VA_ARGS__); \
    cu_result symbol##_ptsz(__VA_ARGS__);

cu_result cuInit(unsigned flags);
cu_result cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);
cu_result cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                              int *status);
cu_result cuDeviceGetCount(int *count);
cu_result cuDeviceGet(cu_device *device, int ordinal);
cu_result cuDeviceGetUuid(cu_uuid *uuid, cu_device device);
cu_result cuDeviceGetUuid_v2(cu_uuid *uuid, cu_device device);
cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device);
cu_result cuMemGetInfo_v2(size_t *free, size_t *total);

cu_result cuMemAlloc(void);
cu_result cuMemAllocPitch(void);
cu_result cuArrayCreate(void);
cu_result cuArray3DCreate(void);
cu_result cuMemGetInfo(void);
cu_result cuDeviceTotalMem(void);

cu_result cuMemAlloc_v2(cu_ptr *ptr, size_t bytes);
cu_result cuMemAllocPitch_v2(cu_ptr *ptr, size_t *pitch, size_t width, size_t height,
                             unsigned element);
cu_result cuMemAllocManaged(cu_ptr *ptr, size_t bytes, unsigned flags);
cu_result cuMemFree_v2(cu_ptr ptr);

VGPU_PAIR(cuMemAllocAsync, cu_ptr *ptr, size_t bytes, cu_stream stream)
VGPU_PAIR(cuMemAllocFromPoolAsync, cu_ptr *ptr, size_t bytes, cu_pool pool, cu_stream stream)
VGPU_PAIR(cuMemFreeAsync, cu_ptr ptr, cu_stream stream)
cu_result cuMemPoolCreate(cu_pool *pool, const struct cu_pool_props *props);
cu_result cuMemGetDefaultMemPool(cu_pool *pool, struct cu_location *location, int type);
cu_result cuMemGetMemPool(cu_pool *pool, struct cu_location *location, int type);
cu_result cuMemPoolDestroy(cu_pool pool);
cu_result cuMemPoolTrimTo(cu_pool pool, size_t keep);
cu_result cuMemPoolGetAttribute(cu_pool pool, int attribute, void *value);
cu_result cuIpcGetMemHandle(struct cu_handle_bytes *handle, cu_ptr ptr);
cu_result cuIpcOpenMemHandle(cu_ptr *ptr, struct cu_handle_bytes handle, unsigned flags);
cu_result cuIpcOpenMemHandle_v2(cu_ptr *ptr, struct cu_handle_bytes handle, unsigned flags);
cu_result cuIpcCloseMemHandle(cu_ptr ptr);
cu_result cuMemPoolImportFromShareableHandle(cu_pool *pool, void *handle, int type,
                                             unsigned long long flags);
cu_result cuMemPoolExportPointer(struct cu_handle_bytes *handle, cu_ptr ptr);
cu_result cuMemPoolImportPointer(cu_ptr *ptr, cu_pool pool, struct cu_handle_bytes *handle);
cu_result cuImportExternalMemory(cu_external *memory, const struct cu_external_desc *desc);
cu_result cuDestroyExternalMemory(cu_external memory);
cu_result cuMemExportToShareableHandle(void *out, cu_handle handle, int type,
                                       unsigned long long flags);
cu_result cuMemImportFromShareableHandle(cu_handle *handle, void *os, int type);
cu_result cuMemGetAllocationPropertiesFromHandle(struct cu_alloc_prop *prop, cu_handle handle);
cu_result cuMemGetAddressRange_v2(cu_ptr *base, size_t *bytes, cu_ptr ptr);
cu_result cuPointerGetAttribute(void *value, int attribute, cu_ptr ptr);

cu_result cuGraphGetNodes(cu_graph graph, cu_node *nodes, size_t *count);
cu_result cuGraphNodeGetType(cu_node node, int *type);
cu_result cuGraphChildGraphNodeGetGraph(cu_node node, cu_graph *graph);
cu_result cuGraphMemAllocNodeGetParams(cu_node node, struct cu_alloc_node *params);
cu_result cuGraphAddMemAllocNode(cu_node *node, cu_graph graph, const cu_node *after, size_t count,
                                 struct cu_alloc_node *params);
cu_result cuGraphAddNode(cu_node *node, cu_graph graph, const cu_node *after, size_t count,
                         struct cu_node_params *params);
cu_result cuGraphAddNode_v2(cu_node *node, cu_graph graph, const cu_node *after, const void *edges,
                            size_t count, struct cu_node_params *params);
cu_result cuGraphInstantiate(cu_exec *exec, cu_graph graph, cu_node *node, char *log, size_t size);
cu_result cuGraphInstantiate_v2(cu_exec *exec, cu_graph graph, cu_node *node, char *log,
                                size_t size);
cu_result cuGraphInstantiateWithFlags(cu_exec *exec, cu_graph graph, unsigned long long flags);
VGPU_PAIR(cuGraphInstantiateWithParams, cu_exec *exec, cu_graph graph, uint64_t *params)
VGPU_PAIR(cuGraphUpload, cu_exec exec, cu_stream stream)
cu_result cuGraphExecDestroy(cu_exec exec);
cu_result cuDeviceGraphMemTrim(cu_device device);
cu_result cuDeviceGetGraphMemAttribute(cu_device device, int attribute, void *value);
cu_result cuDeviceGetDefaultMemPool(cu_pool *pool, cu_device device);
cu_result cuDeviceGetMemPool(cu_pool *pool, cu_device device);

cu_result cuMemCreate(cu_handle *handle, size_t bytes, const struct cu_alloc_prop *prop,
                      unsigned long long flags);
cu_result cuMemRelease(cu_handle handle);
cu_result cuMemMap(cu_ptr ptr, size_t bytes, size_t offset, cu_handle handle,
                   unsigned long long flags);
cu_result cuMemUnmap(cu_ptr ptr, size_t bytes);
cu_result cuMulticastCreate(cu_handle *handle, const void *prop);
cu_result cuMulticastBindMem(cu_handle object, size_t at, cu_handle memory, size_t offset,
                             size_t bytes, unsigned long long flags);
cu_result cuMulticastBindMem_v2(cu_handle object, cu_device device, size_t at, cu_handle memory,
                                size_t offset, size_t bytes, unsigned long long flags);
cu_result cuMulticastBindAddr(cu_handle object, size_t at, cu_ptr ptr, size_t bytes,
                              unsigned long long flags);
cu_result cuMulticastBindAddr_v2(cu_handle object, cu_device device, size_t at, cu_ptr ptr,
                                 size_t bytes, unsigned long long flags);
cu_result cuMulticastUnbind(cu_handle object, cu_device device, size_t at, size_t bytes);
cu_result cuMemRetainAllocationHandle(cu_handle *handle, void *address);
VGPU_PAIR(cuMemMapArrayAsync, struct cu_array_map *list, unsigned count, cu_stream stream)

cu_result cuArrayCreate_v2(cu_array *array, const struct cu_array_desc *desc);
cu_result cuArray3DCreate_v2(cu_array *array, const struct cu_array3d_desc *desc);
cu_result cuArrayGetMemoryRequirements(struct cu_requirements *needs, cu_array array, cu_device device);
cu_result cuMipmappedArrayGetMemoryRequirements(struct cu_requirements *needs, cu_mipmap mipmap,
                                                cu_device device);
cu_result cuArrayGetSparseProperties(struct cu_sparse_properties *properties, cu_array array);
cu_result cuMipmappedArrayGetSparseProperties(struct cu_sparse_properties *properties, cu_mipmap mipmap);
cu_result cuArrayDestroy(cu_array array);
cu_result cuMipmappedArrayCreate(cu_mipmap *mipmap, const struct cu_array3d_desc *desc,
                                 unsigned levels);
cu_result cuMipmappedArrayDestroy(cu_mipmap mipmap);

cu_result cuCtxGetCurrent(cu_ctx *ctx);
cu_result cuCtxGetDevice(cu_device *device);
cu_result cuCtxPushCurrent_v2(cu_ctx ctx);
cu_result cuCtxPopCurrent_v2(cu_ctx *ctx);
cu_result cuCtxCreate(cu_ctx *ctx, unsigned flags, cu_device device);
cu_result cuCtxCreate_v2(cu_ctx *ctx, unsigned flags, cu_device device);
cu_result cuCtxCreate_v3(cu_ctx *ctx, void *affinity, int count, unsigned flags, cu_device device);
cu_result cuCtxCreate_v4(cu_ctx *ctx, void *params, unsigned flags, cu_device device);
cu_result cuGreenCtxCreate(cu_green *green, void *resources, cu_device device, unsigned flags);
cu_result cuGreenCtxDestroy(cu_green green);
cu_result cuGLCtxCreate(cu_ctx *ctx, unsigned flags, cu_device device);
cu_result cuGLCtxCreate_v2(cu_ctx *ctx, unsigned flags, cu_device device);
cu_result cuVDPAUCtxCreate(cu_ctx *ctx, unsigned flags, cu_device device, unsigned vdp, void *find);
cu_result cuVDPAUCtxCreate_v2(cu_ctx *ctx, unsigned flags, cu_device device, unsigned vdp,
                              void *find);
cu_result cuCtxDetach(cu_ctx ctx);
cu_result cuCtxGetApiVersion(cu_ctx ctx, unsigned *version);
cu_result cuCtxDestroy(cu_ctx ctx);
cu_result cuCtxDestroy_v2(cu_ctx ctx);
cu_result cuDevicePrimaryCtxRetain(cu_ctx *ctx, cu_device device);
cu_result cuDevicePrimaryCtxGetState(cu_device device, unsigned *flags, int *active);
cu_result cuDevicePrimaryCtxRelease(cu_device device);
cu_result cuDevicePrimaryCtxRelease_v2(cu_device device);
cu_result cuDevicePrimaryCtxReset(cu_device device);
cu_result cuDevicePrimaryCtxReset_v2(cu_device device);

cu_result cuModuleLoad(cu_module *module, const char *path);
cu_result cuModuleLoadData(cu_module *module, const void *image);
cu_result cuModuleLoadDataEx(cu_module *module, const void *image, unsigned count, void *options,
                             void **values);
cu_result cuModuleLoadFatBinary(cu_module *module, const void *image);
cu_result cuModuleUnload(cu_module module);
cu_result cuModuleGetFunction(cu_function *function, cu_module module, const char *name);
cu_result cuModuleGetGlobal_v2(cu_ptr *ptr, size_t *bytes, cu_module module, const char *name);
cu_result cuKernelGetFunction(cu_function *function, cu_function kernel);
cu_result cuKernelGetLibrary(cu_library *library, cu_function kernel);
cu_result cuFuncGetModule(cu_module *module, cu_function function);
cu_result cuFuncLoad(cu_function function);
cu_result cuLibraryLoadData(cu_library *library, const void *code, void *jit, void **jit_values,
                            unsigned jit_count, void *options, void **values, unsigned count);
cu_result cuLibraryLoadFromFile(cu_library *library, const char *path, void *jit, void **jit_values,
                                unsigned jit_count, void *options, void **values, unsigned count);
cu_result cuLibraryUnload(cu_library library);
cu_result cuLibraryGetModule(cu_module *module, cu_library library);
cu_result cuLibraryGetGlobal(cu_ptr *ptr, size_t *bytes, cu_library library, const char *name);

// The last arguments of a launch. x86-64 passes them on the stack, and a structure of this
// size there as well: a function that only hands it on leaves it where it is. One by one they
// would be read and written back for each launch. Elsewhere a structure is passed by its
// address, so they are arguments like the others.
#ifdef __x86_64__
struct cu_rest {
    _Alignas(8) unsigned bz;
    _Alignas(8) unsigned shared;
    cu_stream stream;
    void **params, **extra;
};
#define CU_REST struct cu_rest rest
#define CU_REST_ARGUMENTS rest
#define CU_REST_OF(field) rest.field
#else
#define CU_REST unsigned bz, unsigned shared, cu_stream stream, void **params, void **extra
#define CU_REST_ARGUMENTS bz, shared, stream, params, extra
#define CU_REST_OF(field) field
#endif
VGPU_PAIR(cuLaunchKernel, cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
          unsigned by, CU_REST)
VGPU_PAIR(cuLaunchKernelEx, const struct cu_launch_config *config, cu_function f, void **params,
          void **extra)
VGPU_PAIR(cuLaunchCooperativeKernel, cu_function f, unsigned gx, unsigned gy, unsigned gz,
          unsigned bx, unsigned by, unsigned bz, unsigned shared, cu_stream stream, void **params)
VGPU_PAIR(cuGraphLaunch, cu_exec exec, cu_stream stream)
cu_result cuLaunch(cu_function f);
cu_result cuLaunchGrid(cu_function f, int width, int height);
cu_result cuLaunchGridAsync(cu_function f, int width, int height, cu_stream stream);

cu_result cuLaunchCooperativeKernelMultiDevice(struct cu_launch_params *list, unsigned count,
                                               unsigned flags);

#define NOW(symbol, kind, bytes, parameters, arguments) \
    cu_result symbol parameters;                        \
    cu_result symbol##_ptds parameters;
#define LATER(symbol, kind, bytes, parameters, arguments) \
    cu_result symbol parameters;                          \
    cu_result symbol##_ptsz parameters;
#include "runtime/copies.def"
#undef NOW
#undef LATER

VGPU_PAIR(cuStreamBeginCapture, cu_stream stream)
VGPU_PAIR(cuStreamBeginCapture_v2, cu_stream stream, int mode)
VGPU_PAIR(cuStreamBeginCaptureToGraph, cu_stream stream, cu_graph graph, const cu_node *nodes,
          const void *edges, size_t count, int mode)
VGPU_PAIR(cuStreamEndCapture, cu_stream stream, cu_graph *graph)
cu_result cuStreamDestroy(cu_stream stream);
cu_result cuStreamDestroy_v2(cu_stream stream);
cu_result cuThreadExchangeStreamCaptureMode(int *mode);

cu_result cuEventCreate(cu_event *event, unsigned flags);
VGPU_PAIR(cuEventRecord, cu_event event, cu_stream stream)
cu_result cuEventQuery(cu_event event);
cu_result cuEventDestroy_v2(cu_event event);
cu_result cuEventElapsedTime(float *ms, cu_event start, cu_event end);
cu_result cuStreamGetCtx(cu_stream stream, cu_ctx *ctx);
cu_result cuCtxSynchronize(void);
VGPU_PAIR(cuStreamSynchronize, cu_stream stream)
VGPU_PAIR(cuStreamIsCapturing, cu_stream stream, int *status)

nv_result nvmlInit_v2(void);
nv_result nvmlDeviceGetHandleByUUID(const char *uuid, nv_device *device);
nv_result nvmlDeviceGetHandleByUUIDV(const void *uuid, nv_device *device);
nv_result nvmlDeviceGetHandleBySerial(const char *serial, nv_device *device);
nv_result nvmlDeviceGetHandleByPciBusId(const char *id, nv_device *device);
nv_result nvmlDeviceGetHandleByPciBusId_v2(const char *id, nv_device *device);
nv_result nvmlDeviceGetHandleByIndex(unsigned index, nv_device *device);
nv_result nvmlDeviceGetHandleByIndex_v2(unsigned index, nv_device *device);
nv_result nvmlDeviceGetCount(unsigned *count);
nv_result nvmlDeviceGetCount_v2(unsigned *count);
nv_result nvmlDeviceGetIndex(nv_device device, unsigned *index);
nv_result nvmlDeviceGetUUID(nv_device device, char *uuid, unsigned length);
nv_result nvmlDeviceGetMemoryInfo(nv_device device, struct nv_memory *memory);
nv_result nvmlDeviceGetMemoryInfo_v2(nv_device device, struct nv_memory_v2 *memory);
#define VGPU_PROCESS_LIST(kind)                                                                  \
    nv_result nvmlDeviceGet##kind##RunningProcesses(nv_device device, unsigned *count,           \
                                                    struct nv_process_v1 *list);                 \
    nv_result nvmlDeviceGet##kind##RunningProcesses_v2(nv_device device, unsigned *count,        \
                                                       struct nv_process_v2 *list);              \
    nv_result nvmlDeviceGet##kind##RunningProcesses_v3(nv_device device, unsigned *count,        \
                                                       struct nv_process_v2 *list)
VGPU_PROCESS_LIST(Compute);
VGPU_PROCESS_LIST(Graphics);
VGPU_PROCESS_LIST(MPSCompute);
nv_result nvmlDeviceGetProcessUtilization(nv_device device, struct nv_sample *samples,
                                          unsigned *count, unsigned long long since);
nv_result nvmlDeviceGetProcessesUtilizationInfo(nv_device device, struct nv_busy_list *list);
nv_result nvmlDeviceGetRunningProcessDetailList(nv_device device,
                                                struct nv_process_detail_list *list);

#pragma GCC visibility pop

enum vgpu_library { VGPU_CUDA, VGPU_NVML };

enum vgpu_hook {
#define HOOK(library, symbol, base, since, per_thread, why) VGPU_##symbol,
#define ALSO(library, symbol, base, since, per_thread)
#define USE(library, symbol) VGPU_##symbol,
#include "runtime/hooks.def"
#undef HOOK
#undef ALSO
#undef USE
    VGPU_HOOKS
};

// The row of a hook in hooks.def.
struct vgpu_driver_function {
    const char *symbol;
    uint8_t library;
};
extern const struct vgpu_driver_function vgpu_driver_functions[VGPU_HOOKS];

extern void *_Atomic vgpu_reals[VGPU_HOOKS];
void *vgpu_resolve(enum vgpu_hook hook);

// The driver's own function; NULL where it hasn't been looked for yet.
static inline void *vgpu_known(enum vgpu_hook hook) {
    return atomic_load_explicit(&vgpu_reals[hook], memory_order_acquire);
}

static inline void *vgpu_real(enum vgpu_hook hook) {
    void *real = vgpu_known(hook);
    return vgpu_likely(real != NULL) ? real : vgpu_resolve(hook);
}

// The driver's own function, callable. Where the driver is not loaded or lacks
// it, a function that returns the library's code for that.
#define VGPU_REAL(symbol) ((__typeof__(&symbol))vgpu_real(VGPU_##symbol))

// The same for one of the two that VGPU_PAIR declares.
#define VGPU_REAL_OF(symbol, per_thread) \
    ((__typeof__(&symbol))vgpu_real((per_thread) ? VGPU_##symbol##_ptsz : VGPU_##symbol))

extern const char *const vgpu_sonames[];

// Opens a library as dlopen does, without depending on where dlopen is. NULL if
// that fails.
void *vgpu_open(const char *path, int flags);

// Reports whether the driver has the function.
bool vgpu_has(enum vgpu_hook hook);

#endif
