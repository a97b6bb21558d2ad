// SPDX-License-Identifier: Apache-2.0
//
// stream_api.h: streams, events and stream capture.

CUresult CUDAAPI cuStreamCreate(CUstream *phStream, unsigned int Flags);
CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags, int priority);
CUresult CUDAAPI cuStreamDestroy_v2(CUstream hStream);
CU_PTSZ(cuStreamGetPriority, CUstream hStream, int *priority);
CU_PTSZ(cuStreamGetFlags, CUstream hStream, unsigned int *flags);
CU_PTSZ(cuStreamGetId, CUstream hStream, unsigned long long *streamId);
CU_PTSZ(cuStreamGetCtx, CUstream hStream, CUcontext *pctx);
CU_PTSZ(cuStreamGetCtx_v2, CUstream hStream, CUcontext *pCtx, CUgreenCtx *pGreenCtx);
CU_PTSZ(cuStreamGetDevice, CUstream hStream, CUdevice *device);
CU_PTSZ(cuStreamWaitEvent, CUstream hStream, CUevent hEvent, unsigned int Flags);
CU_PTSZ(cuStreamAddCallback, CUstream hStream, CUstreamCallback callback, void *userData,
        unsigned int flags);
CU_PTSZ(cuStreamQuery, CUstream hStream);
CU_PTSZ(cuStreamSynchronize, CUstream hStream);

CU_PTSZ(cuStreamBeginCapture, CUstream hStream);
CU_PTSZ(cuStreamBeginCapture_v2, CUstream hStream, CUstreamCaptureMode mode);
CU_PTSZ(cuStreamBeginCaptureToGraph, CUstream hStream, CUgraph hGraph,
        const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
        size_t numDependencies, CUstreamCaptureMode mode);
CU_PTSZ(cuStreamEndCapture, CUstream hStream, CUgraph *phGraph);
CU_PTSZ(cuStreamIsCapturing, CUstream hStream, CUstreamCaptureStatus *captureStatus);
CU_PTSZ(cuStreamGetCaptureInfo, CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
        cuuint64_t *id_out);
CU_PTSZ(cuStreamGetCaptureInfo_v2, CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
        cuuint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out,
        size_t *numDependencies_out);
CU_PTSZ(cuStreamGetCaptureInfo_v3, CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
        cuuint64_t *id_out, CUgraph *graph_out, const CUgraphNode **dependencies_out,
        const CUgraphEdgeData **edgeData_out, size_t *numDependencies_out);
CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);

CUresult CUDAAPI cuEventCreate(CUevent *phEvent, unsigned int Flags);
CU_PTSZ(cuEventRecord, CUevent hEvent, CUstream hStream);
CU_PTSZ(cuEventRecordWithFlags, CUevent hEvent, CUstream hStream, unsigned int flags);
CUresult CUDAAPI cuEventQuery(CUevent hEvent);
CUresult CUDAAPI cuEventSynchronize(CUevent hEvent);
CUresult CUDAAPI cuEventDestroy_v2(CUevent hEvent);
CUresult CUDAAPI cuEventElapsedTime(float *pMilliseconds, CUevent hStart, CUevent hEnd);
CUresult CUDAAPI cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd);
