// SPDX-License-Identifier: Apache-2.0

//go:build arm64test

// Package arm64 runs the limiter's and the layout's tests for arm64 on another machine: built
// by Debian's cross compiler, run by QEMU's user emulation, with tag arm64test (`make
// test-arm64`). The tests themselves run natively; libvgpu.so, the simulated driver and the
// programs are arm64's.
//
// What is not run:
//   - `vgpu-run`, and what preloads the library into /bin/sh (TestWithoutCUDA): that is arm64's
//     library in this machine's programs.
//   - What goes by ptrace or by a sanitizer, which QEMU has not.
//   - What starts hundreds of processes or takes minutes on a real processor; and TestViews,
//     whose thousands of looks take more than a quarter of an hour here.
//   - TestBriefThreads: QEMU keeps memory of each thread that has ended, whatever that did.
//   - TestClosedDescriptors: QEMU makes up the start time in a process's own /proc/PID/stat, by
//     which others know that it lives when its lock has gone.
//   - Limits of files' sizes: QEMU writes what it makes up of /proc into a file.
//   - TestFirstContextIsAwaited: it looks for the native system call of poll, where QEMU calls
//     ppoll.
package arm64

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
)

const skipped = "TestRun|TestUnits|Sanitize|TestLimitsAreJudgedAlike|TestAnySystemCallFails|Shares|TestNeighbours|TestYield|TestOthers|TestClock|TestOverhead|TestDenied|TestCrowd|TestStorm|TestResizeStorm|TestGiveBack|TestChurn|TestShortage|" +
	"TestWithoutCUDA|TestViews|TestBriefThreads|TestClosedDescriptors|TestResourceLimits/files|TestFirstContextIsAwaited"

func TestLayout(t *testing.T) {
	program := filepath.Join(t.TempDir(), "layout.test")
	build(t, program, "./vgpu-limiter/layout", "GOARCH=arm64", "CC=aarch64-linux-gnu-gcc")
	emulated(t, "vgpu-limiter/layout", program, "-test.skip", "ABI")
}

func TestLimiter(t *testing.T) {
	program := filepath.Join(t.TempDir(), "limiter.test")
	build(t, program, "./vgpu-limiter/tests")
	emulated(t, "vgpu-limiter/tests", program, "-test.skip", skipped, "-test.parallel", "2")
}

func build(t *testing.T, program, pkg string, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, pkg)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// emulated runs a test program in its package's folder, in a user namespace with every user.
func emulated(t *testing.T, folder string, program ...string) {
	t.Helper()
	qemu, err := exec.CommandContext(t.Context(), "./unpack").Output()
	if err != nil {
		t.Fatalf("unpack: %v", err)
	}
	inside := must.Get(filepath.Abs("inside.sh"))(t)
	bin := must.Get(filepath.Abs("../../bin/arm64-tests"))(t)
	cmd := exec.CommandContext(t.Context(), inside, append([]string{strings.TrimSpace(string(qemu))}, append(program, "-test.v", "-test.timeout", "20m")...)...)
	cmd.Dir = filepath.Join("../..", folder)
	cmd.Env = append(os.Environ(), "GOARCH=arm64", "CC=aarch64-linux-gnu-gcc", "VERNIER_BIN="+bin)
	all := []syscall.SysProcIDMap{{Size: 1<<32 - 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true,
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr // for minutes: as it comes
	must.Report(t, cmd.Run())
}
