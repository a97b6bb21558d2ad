// SPDX-License-Identifier: Apache-2.0

// Package clients runs Debian's packages of programs that use CUDA or NVML on the simulated
// driver, as they are, with tag clients: each native and limited, as a table. "unpack"
// takes the packages. No other test needs them, and none of them needs a GPU.
package clients
