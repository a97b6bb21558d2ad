// SPDX-License-Identifier: Apache-2.0

package tests

import "golang.org/x/sys/unix"

// The system calls of glibc's poll and readlink on this architecture.
const (
	sysPoll     = unix.SYS_PPOLL
	sysReadlink = unix.SYS_READLINKAT
)
