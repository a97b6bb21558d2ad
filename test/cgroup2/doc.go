// SPDX-License-Identifier: Apache-2.0

// Package cgroup2 owns a machine whose only control groups are version 2, for tests that
// need one where the machine at hand has version 1 or both: Debian's kernel in QEMU,
// which needs no hardware support, no disk and no privilege of its own.
//
// The machine has two CPUs, each on a NUMA node of its own, and the files of this one,
// read-only. It writes to its own memory above them, so a program that was built here runs
// there by the same path. It has no network and ends with its first command. Tag cgroup2 has
// the tests; those that run there are in "inside".
package cgroup2
