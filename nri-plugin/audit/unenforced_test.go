// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
)

// A process that evades the limiter is ended where the operator wants it, once two looks have
// found it, and no other: not one that is limited, nor one whose container may have been given
// the GPU past Vernier, nor what has its number by then.
func TestHostileUnenforced(t *testing.T) {
	for name, c := range map[string]struct {
		container, uuid string
		off             bool
		prepare         func(n *node, pid int)
		between         func(n *node, pid int)
		ends            bool
	}{
		"past the limiter":                     {container: "limited", uuid: gpu0, ends: true},
		"with a slice of another device":       {container: "limited", uuid: gpu1, ends: true},
		"without a slice, by a mapping":        {container: "kept", uuid: gpu0, ends: true},
		"only reported":                        {container: "limited", uuid: gpu0, off: true},
		"limited":                              {container: "limited", uuid: gpu0, prepare: func(n *node, pid int) { n.marked = []int{pid} }},
		"a whole device":                       {container: "whole", uuid: gpu1},
		"its container came without the agent": {container: "plain", uuid: gpu0},
		"its container was found so": {container: "limited", uuid: gpu0, prepare: func(n *node, _ int) {
			e, _ := n.Table.Get(id("limited"))
			e.Prepared = false
			n.Table.Reset([]attach.Entry{e})
		}},
		"in no container":    {uuid: gpu0},
		"its number is used": {container: "limited", uuid: gpu0, between: func(n *node, pid int) { n.runs(pid, "limited", 101) }},
		"its number is used elsewhere": {container: "limited", uuid: gpu0, between: func(n *node, pid int) {
			n.runs(pid, "whole", 100)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.EndUnenforced = !c.off
			kept(n)
			process := exec.Command("sleep", "600")
			if err := process.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = process.Process.Kill() })
			pid := process.Process.Pid
			n.runs(pid, c.container, 100)
			n.using[c.uuid] = []int{pid}
			if c.prepare != nil {
				c.prepare(n, pid)
			}
			n.Look()
			if c.between != nil {
				c.between(n, pid)
			}
			n.Look()
			said := strings.Join(n.said, "\n")
			if strings.Contains(said, "It is ended") != c.ends {
				t.Errorf("said %q", said)
			}
			// One signal at a time: the process ends by the first that comes.
			if err := process.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			_ = process.Wait()
			want := syscall.SIGTERM
			if c.ends {
				want = syscall.SIGKILL
			}
			if got := process.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != want {
				t.Errorf("it ended by %v, want %v", got, want)
			}
		})
	}
}

// kept adds a container from which GPUs were kept when it was created.
func kept(n *node) {
	n.t.Helper()
	pod := &api.PodSandbox{Id: "sandbox-kept", Name: "kept", Namespace: "team", Uid: "uid-kept"}
	c := &api.Container{Id: id("kept"), Name: "main", Env: []string{v1alpha1.EnvVisibleDevices + "=" + v1alpha1.EnvVisibleDevicesVoid}}
	if err := n.plugin.StartContainer(n.t.Context(), pod, c); err != nil {
		n.t.Fatal(err)
	}
}
