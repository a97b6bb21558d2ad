// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/simgpu"
)

// disguised is a tenant's process that looks like one of the folder's by all that its
// owner decides: its command line and its environment. It is in a container, so it has
// another PID namespace and another /dev/shm.
func (n *node) disguised(name string) *exec.Cmd {
	n.t.Helper()
	tail, err := exec.LookPath("tail")
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(tail)
	cmd.Args = []string{name, foreground, "/dev/null"}
	cmd.Env = []string{envPipe + "=" + pipes(n.files.folder(n.uuid()))}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// A tenant's process that goes by a daemon's name, or a server's, ends no daemon and keeps
// none from being started.
func TestDisguisedProcess(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	n := newNode(t, simgpu.Driver555)
	server := n.disguised(serverName)
	c := n.grant("a", 30, 1000)
	n.containers = []mode.Container{c}
	dir := n.files.folder(n.uuid())
	before, err := n.program.Processes(dir)
	if err != nil || len(before) != 2 {
		t.Fatalf("processes %+v, %v", before, err)
	}

	control := n.disguised(controlName)
	n.restart(n.files.dir, n.program)
	if err := n.Settle(); err != nil {
		t.Error(err)
	}
	c = n.grant("b", 60, 2000)
	if _, err := n.Apply(c, n.first(c)); err != nil {
		t.Error(err)
	}
	if after, err := n.program.Processes(dir); err != nil || !slices.Equal(before, after) {
		t.Errorf("processes %+v, %v; want %+v", after, err, before)
	}
	for _, cmd := range []*exec.Cmd{server, control} {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid)); err != nil {
			t.Errorf("the tenant's process was ended: %v", err)
		}
	}
}
