// SPDX-License-Identifier: Apache-2.0

// Package nvidia holds NVIDIA's own user-space programs and libraries beside ours, with
// tag vendor: the drivers' symbols
// beside the limiter's tables and the simulated libraries, nvidia-smi and the CUDA
// runtime under the limiter (the runtime also on the simulated driver), and the agent on a machine whose driver is not loaded.
//
// The programs are Debian's packages of them, which "unpack" takes from its component
// non-free. None of them is in the tree, no other test needs them, and none of them needs
// a GPU: what can only be seen on one is not seen here. They are run and looked at from
// outside, by what they answer and the names that they export.
package nvidia
