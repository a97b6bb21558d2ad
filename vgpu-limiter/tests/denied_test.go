// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDeniedSystemCalls: where a container's seccomp profile forbids what the library
// would like to do, memory is charged as ever, or CUDA refused with a line that says why.
func TestDeniedSystemCalls(t *testing.T) {
	t.Parallel()
	number := func(calls ...int) string { return strings.Trim(fmt.Sprint(calls), "[]") }
	for name, test := range map[string]struct{ calls, says string }{
		"looks into others": {number(unix.SYS_PROCESS_VM_READV, unix.SYS_PTRACE, unix.SYS_KCMP, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL), ""},
		"files in memory":   {number(unix.SYS_MEMFD_CREATE), ""},
		"others":            {number(unix.SYS_GETPGID, sysReadlink, unix.SYS_READLINKAT, unix.SYS_SCHED_YIELD, sysPoll), ""},
		"asking for a lock": {fmt.Sprintf("%d:%d", unix.SYS_FCNTL, unix.F_GETLK), ""},
		"locks":             {fmt.Sprintf("%d:%d", unix.SYS_FCNTL, unix.F_SETLK), "counters: "},
		"wiping at a fork":  {number(unix.SYS_MADVISE), "madvise"},
	} {
		for _, code := range []unix.Errno{unix.EPERM, unix.ENOSYS} {
			t.Run(fmt.Sprintf("%s, %v", name, code), func(t *testing.T) {
				t.Parallel()
				if sanitized && name == "others" {
					t.Skip("the sanitizer wants to read a link, and says so where it may not")
				}
				c := newBareContainer(t, share{0, 100})
				cmd := c.command("libvgpu-test.so", "denied", append(append([]string{fmt.Sprint(int(code))}, strings.Fields(test.calls)...), "--", filepath.Join(c.built.dir, "calls"))...)
				if test.says == "" {
					c.wantLimited(cmd)
					return
				}
				var stderr strings.Builder
				cmd.Stdin, cmd.Stderr = strings.NewReader(heldCalls), &stderr
				out, err := cmd.Output()
				if says := stderr.String(); err != nil || !strings.HasPrefix(string(out), "init 800\nprimary 800\n") || strings.Count(says, "\n") != 1 ||
					!strings.Contains(says, test.says) || strings.Contains(says, "every slot") {
					t.Errorf("%v\n%s%s", err, out, says)
				}
			})
		}
	}
}
