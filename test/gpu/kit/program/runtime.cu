// SPDX-License-Identifier: Apache-2.0
//
// A program of the CUDA runtime, for a machine that has nvcc: a kernel and its sum, then
// memory in pieces of 64 MiB up to MOST_MIB (first argument).
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

__global__ void square(unsigned *out, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = i % 101 * (i % 101);
}

int main(int argc, char **argv) {
    const unsigned n = 1 << 20;
    static unsigned host[n];
    unsigned *at;
    double sum = 0;
    size_t most = argc > 1 ? (size_t)atol(argv[1]) << 20 : 0, held = 0, piece = (size_t)64 << 20, free_bytes, total;
    if (cudaMalloc(&at, sizeof host) != cudaSuccess) return 1;
    square<<<n / 256, 256>>>(at, n);
    if (cudaMemcpy(host, at, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
    for (unsigned i = 0; i < n; i++) sum += host[i];
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) return 1;
    cudaError_t error = cudaSuccess;
    void *more;
    while (held + piece <= most && (error = cudaMalloc(&more, piece)) == cudaSuccess) held += piece;
    printf("{\"Total\":%zu,\"Held\":%zu,\"Error\":\"%s\",\"Checksum\":%.0f}\n", total, held,
           error == cudaSuccess ? "" : cudaGetErrorName(error), sum);
    return 0;
}
