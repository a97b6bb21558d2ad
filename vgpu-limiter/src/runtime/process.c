// SPDX-License-Identifier: Apache-2.0
//
// The process's state, and which device a call is about.

#include "runtime/process.h"

struct vgpu_process *_Atomic vgpu_process_page;

atomic_uint vgpu_handle_epoch = 1;

static _Thread_local struct {
    struct vgpu_here here;
    const struct vgpu_process *process;
    unsigned epoch;
} last __attribute__((tls_model("initial-exec")));

void vgpu_forget_contexts(void) { atomic_fetch_add(&vgpu_handle_epoch, 1); }

int vgpu_device_index(const struct vgpu_process *process, cu_device device) {
    int index = device >= 0 && device < VGPU_ORDINALS ? process->index[device] : -1;
    if (index < 0)
        VGPU_LOG_ONCE("CUDA device %d refused: the container has no share of it", device);
    return index;
}

cu_result vgpu_here(const struct vgpu_process *process, struct vgpu_here *here) {
    cu_ctx ctx = NULL;
    cu_result result = VGPU_REAL(cuCtxGetCurrent)(&ctx);
    unsigned epoch = vgpu_epoch();
    if (vgpu_unlikely(result != CU_OK || ctx == NULL || ctx != last.here.ctx ||
                      epoch != last.epoch || process != last.process)) {
        cu_device device = -1;
        if (result == CU_OK)
            result = VGPU_REAL(cuCtxGetDevice)(&device);
        if (result != CU_OK)
            return result;
        last.here.ctx = ctx;
        last.here.device = vgpu_device_index(process, device);
        last.process = process;
        last.epoch = epoch;
    }
    *here = last.here;
    return vgpu_likely(here->device >= 0) ? CU_OK : CU_NOT_PERMITTED;
}

bool vgpu_is_capturing(const struct vgpu_process *process, bool per_thread, cu_stream stream) {
    int status = CU_CAPTURE_NONE;
    return atomic_load_explicit(&process->launches.captures, memory_order_relaxed) != 0 &&
           (VGPU_REAL_OF(cuStreamIsCapturing, per_thread)(stream, &status) != CU_OK || status != CU_CAPTURE_NONE);
}

void vgpu_stream_wait(const struct vgpu_process *process, bool per_thread, cu_stream stream) {
    if (vgpu_is_capturing(process, per_thread, stream))
        return;
    int mode = vgpu_capture_mode(CU_CAPTURE_RELAXED);
    VGPU_REAL_OF(cuStreamSynchronize, per_thread)(stream);
    vgpu_capture_mode(mode);
}
