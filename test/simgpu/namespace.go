// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const insideEnv = "SIMGPU_INSIDE_MOUNT_NAMESPACE"

// InMountNamespace runs the calling test once more, in a process with a mount
// namespace of its own, and reports whether the caller is that process: the other one
// has nothing left to do. It needs root, and skips the test without.
func InMountNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideEnv) != "" {
		return true
	}
	needRoot(t, "mounts need")
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// MountProc puts the /proc/driver of a driver root (DriverRoot) over this mount
// namespace's: the toolkit reads mig-minors at its absolute place, whatever the root.
func MountProc(root string) error {
	if err := unix.Mount(filepath.Join(root, "proc", "driver"), "/proc/driver", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the simulated /proc/driver: %w", err)
	}
	return nil
}
