// SPDX-License-Identifier: Apache-2.0

package tests

import "golang.org/x/sys/unix"

// The system calls of glibc's poll and readlink on this architecture.
const (
	sysPoll     = unix.SYS_POLL
	sysReadlink = unix.SYS_READLINK
)
