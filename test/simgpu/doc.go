// SPDX-License-Identifier: Apache-2.0

// Package simgpu builds, creates and breaks simulated GPUs: it is the Go hand
// on the C libraries of this folder, for tests, the demo and the cluster
// harness. It owns nothing of the simulation itself: it runs make and simgpuctl
// and reads what they print. It needs no cgo, and never links NVML or CUDA.
package simgpu
