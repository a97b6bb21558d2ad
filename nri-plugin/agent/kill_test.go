// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Only a process of the container is ended, whatever number the runtime names.
func TestKill(t *testing.T) {
	process := exec.Command("sleep", "600")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Process.Kill() })
	pid := uint32(process.Process.Pid)
	for name, c := range map[string]struct {
		pid       uint32
		container string
		says      string
	}{
		"another's process": {pid, "0123456789abcdef", "not of container"},
		"no process":        {0, "0123456789abcdef", "no process"},
		"no container":      {pid, "", "no process"},
	} {
		if err := kill(c.pid, c.container); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	own, _, _ := strings.Cut(string(text), "\n")
	if err := kill(pid, own); err != nil {
		t.Fatal(err)
	}
	if err := process.Wait(); err == nil || process.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the process ended with %v, want SIGKILL", err)
	}
}
