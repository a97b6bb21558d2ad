// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/exclusive"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

const (
	gpu0 = "GPU-00000000-0000-0000-0000-000000000000"
	gpu1 = "GPU-11111111-1111-1111-1111-111111111111"
)

// node is a machine whose processes and devices are the test's.
type node struct {
	*Auditor
	plugin *hooks.Plugin
	t      *testing.T
	using  map[string][]int // device to PIDs
	failed error
	mig    v1alpha1.MIGState
	marked []int // in the counters of the limited containers
	said   []string
	clock  time.Time
}

func newNode(t *testing.T) *node {
	n := &node{t: t, using: map[string][]int{}, clock: time.Unix(1e9, 0)}
	plugin := &hooks.Plugin{Ledger: noLedger{}, Table: &attach.ContainerTable{}, Report: n, Log: logr.Discard()}
	n.plugin = plugin
	n.Auditor = &Auditor{
		Devices: n, Table: plugin.Table, Containers: &plugin.Containers, Report: n, Proc: t.TempDir(),
		Modes: mode.Set{v1alpha1.ModeLimiter: counting{node: n}, v1alpha1.ModeExclusive: exclusive.Mode{}},
		Now:   func() time.Time { return n.clock }, Log: logr.Discard(),
	}
	n.container(plugin, "limited", v1alpha1.ModeLimiter, gpu0)
	n.container(plugin, "whole", v1alpha1.ModeExclusive, gpu1)
	n.container(plugin, "plain", "", "")
	return n
}

// container is one that runs, with a slice of the device if that is not empty.
func (n *node) container(p *hooks.Plugin, name string, m v1alpha1.Mode, uuid string) {
	pod := &api.PodSandbox{Id: "sandbox-" + name, Name: name, Namespace: "team", Uid: "uid-" + name}
	if err := p.StartContainer(n.t.Context(), pod, &api.Container{Id: id(name), Name: "main"}); err != nil {
		n.t.Fatal(err)
	}
	if uuid == "" {
		return
	}
	grants := []ledger.Grant{{UUID: uuid, Core: 30, Mem: 1024, DeviceMem: 81920, Mode: m}}
	err := p.Table.Attach(attach.Entry{Prepared: true, Container: mode.Container{Pod: types.UID("uid-" + name), Name: "main", ID: id(name), Grants: grants}})
	if err != nil {
		n.t.Fatal(err)
	}
}

// id is of a form that runtimes use.
func id(name string) string { return strings.Repeat("0", 60-len(name)) + name + "0123" }

// runs makes a process in a container, or in none.
func (n *node) runs(pid int, container string, start int) {
	cgroup := "0::/system.slice/ssh.service\n"
	if container != "" {
		cgroup = fmt.Sprintf("12:devices:/kubepods/podx/%s\n0::/kubepods.slice/kubepods-podx.slice/cri-containerd-%[1]s.scope/inner\n", id(container))
	}
	n.write(pid, "cgroup", cgroup)
	n.write(pid, "stat", stat(pid, "R", start))
	n.write(pid, "maps", "7f00-7f10 r--p 00000000 00:00 1 /lib/libc.so.6\n")
}

// stat is a process's line of procfs.
func stat(pid int, state string, start int) string {
	return fmt.Sprintf("%d (a) b) %s %s%d%s\n", pid, state, strings.Repeat("1 ", 18), start, strings.Repeat(" 0", 30))
}

func (n *node) write(pid int, file, text string) {
	n.t.Helper()
	dir := filepath.Join(n.Proc, strconv.Itoa(pid))
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) Snapshot() (device.Snapshot, bool) {
	return device.Snapshot{Devices: []v1alpha1.DeviceStatus{{UUID: gpu0, MIG: n.mig}, {UUID: gpu1}}}, true
}
func (n *node) Library() (device.Library, error) { return library{node: n}, n.failed }

func (n *node) Warn(pod hooks.PodRef, reason, message string) {
	n.said = append(n.said, pod.Namespace+"/"+pod.Name+" "+reason+" "+message)
}

type library struct {
	device.Library
	node *node
}

func (l library) Processes(uuid string) ([]int, error) { return l.node.using[uuid], nil }

// counting is the limiter, of which only the counters are asked.
type counting struct {
	mode.Mode
	node *node
}

func (c counting) Usage(mode.Container) (*layout.Usage, error) {
	u := &layout.Usage{}
	for _, pid := range c.node.marked {
		u.Processes = append(u.Processes, layout.ProcessUsage{HostPID: pid})
	}
	return u, nil
}

type noLedger struct{ hooks.Ledger }

func (noLedger) Index() *ledger.Index { return ledger.NewIndex(nil) }

// Who is reported, and to whom.
func TestLook(t *testing.T) {
	for name, c := range map[string]struct {
		container, uuid string
		prepare         func(*node)
		// pod that is told, and what its event says; empty: nobody is.
		pod, says string
		found     int
	}{
		"limited":                   {container: "limited", uuid: gpu0, prepare: func(n *node) { n.marked = []int{7} }},
		"limited, its mark is lost": {container: "limited", uuid: gpu0, prepare: func(n *node) { n.write(7, "maps", "7f00-7f10 rw-s 0 fd:01 5 "+layout.CountersPath+"//deleted\n") }},
		"past the limiter":          {container: "limited", uuid: gpu0, pod: "limited", says: "passes by the limiter", found: 1},
		"of another device":         {container: "limited", uuid: gpu1, prepare: func(n *node) { n.marked = []int{7} }, pod: "limited", says: gpu1, found: 1},
		"whole device":              {container: "whole", uuid: gpu1},
		"no slice":                  {container: "plain", uuid: gpu0, pod: "plain", says: string(v1alpha1.ResourceCore), found: 1},
		"in no container":           {uuid: gpu0, found: 1},
		"device in MIG mode":        {container: "plain", uuid: gpu0, prepare: func(n *node) { n.mig = v1alpha1.MIGEnabled }},
		"has ended":                 {container: "limited", uuid: gpu0, prepare: func(n *node) { n.write(7, "stat", stat(7, "Z", 1)) }},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.runs(7, c.container, 100)
			n.using[c.uuid] = []int{7}
			if c.prepare != nil {
				c.prepare(n)
			}
			n.Look()
			if len(n.said) != 0 || len(n.Findings()) != 0 {
				t.Errorf("after one look: %v, %v", n.said, n.Findings())
			}
			n.Look()
			n.Look()
			got := n.Findings()
			if len(got) != c.found || c.found > 0 && (got[0].Processes != 1 || got[0].UUID != c.uuid || got[0].Holder.Pod.Name != c.container) {
				t.Errorf("found %+v, want %d", got, c.found)
			}
			switch {
			case c.pod == "" && len(n.said) != 0:
				t.Errorf("said %q, want nothing", n.said)
			case c.pod != "" && (len(n.said) != 1 || !strings.HasPrefix(n.said[0], "team/"+c.pod+" "+ReasonProcess) || !strings.Contains(n.said[0], c.says)):
				t.Errorf("said %q, want one event of %s with %q", n.said, c.pod, c.says)
			}
		})
	}
}

// A number that another process has by the second look is no proof.
func TestPIDUsedAgain(t *testing.T) {
	n := newNode(t)
	n.using[gpu0] = []int{7}
	for start := range 5 {
		n.runs(7, "limited", start)
		n.Look()
	}
	if len(n.said) != 0 || len(n.Findings()) != 0 {
		t.Errorf("said %q, found %v", n.said, n.Findings())
	}
}

// A container is told of a change, not of every process, nor again and again when
// it goes in and out; and again when it starts anew much later.
func TestEventPerChange(t *testing.T) {
	n := newNode(t)
	looks := func(pids ...int) {
		for _, pid := range pids {
			n.runs(pid, "limited", pid)
		}
		n.using[gpu0] = pids
		n.Look()
		n.Look()
		n.clock = n.clock.Add(time.Minute)
	}
	for range 3 {
		looks(7)
		looks(7, 8)
		if got := n.Findings(); len(got) != 1 || got[0].Processes != 2 {
			t.Fatalf("found %+v, want 2 processes", got)
		}
		looks()
		if got := n.Findings(); len(got) != 0 {
			t.Fatalf("found %+v after their end", got)
		}
	}
	if len(n.said) != 1 {
		t.Errorf("said %q, want one event", n.said)
	}
	n.clock = n.clock.Add(quiet)
	looks()
	looks(9)
	if len(n.said) != 2 {
		t.Errorf("said %q, want a second event after %s", n.said, quiet)
	}
	// What NVML does not say is not concluded from.
	n.failed = errors.New("no driver")
	n.Look()
	if len(n.Findings()) != 1 {
		t.Errorf("found %v without NVML", n.Findings())
	}
}
