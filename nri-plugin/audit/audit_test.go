// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
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
	"vernier.dev/vernier/test/must"
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
	must.Do(n.t, p.StartContainer(n.t.Context(), pod, &api.Container{Id: id(name), Name: "main"}))
	if uuid == "" {
		return
	}
	grants := []ledger.Grant{{UUID: uuid, Core: 30, Mem: 1024, DeviceMem: 81920, Mode: m}}
	must.Do(n.t, p.Table.Attach(attach.Entry{Prepared: true, Container: mode.Container{Pod: types.UID("uid-" + name), Name: "main", ID: id(name), Grants: grants}}))
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
	must.Do(n.t, errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600)))
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
			must.Do(t, process.Start())
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
			must.Do(t, process.Process.Signal(syscall.SIGTERM))
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
	must.Do(n.t, n.plugin.StartContainer(n.t.Context(), pod, c))
}

// turns are those of a node on which a container works on gpu0.
type turns struct {
	busy       map[int]int
	containers map[int]string
}

func (*turns) Working() []string { return []string{gpu0, gpu1} }

func (t *turns) Sampled(uuid string, busy map[int]int, containers map[int]string) {
	if uuid == gpu0 {
		t.busy, t.containers = busy, containers
	}
}

// sampling is NVML with a process on gpu0 for each way to be somewhere; it says nothing of gpu1.
type sampling struct {
	device.Library
	asked []uint64
}

// sampledNode has that NVML.
type sampledNode struct{ nvml *sampling }

func (s sampledNode) Library() (device.Library, error) { return s.nvml, nil }

func (s *sampling) Utilization(uuid string, since uint64) (map[int]int, uint64, error) {
	if uuid != gpu0 {
		return nil, since, errors.New("not supported")
	}
	s.asked = append(s.asked, since)
	return map[int]int{1: 10, 2: 20, 3: 30, 4: 40, 5: 5}, since + 7, nil
}

// TestSample: a process is in the container whose cgroup it is in, whatever it names the
// cgroups below that; one that has ended is nobody's, the container's own least of all; and
// one device that NVML says nothing of leaves the others as they are.
func TestSample(t *testing.T) {
	n := newNode(t)
	got, library := &turns{}, &sampling{}
	s := &Sampler{Devices: sampledNode{library}, Turns: got, Containers: n.Containers, Proc: n.Proc, Log: n.Log}
	n.runs(1, "limited", 1)
	n.runs(2, "", 1)
	n.runs(3, "plain", 1)
	n.write(3, "cgroup", "0::/kubepods/podx/"+id("plain")+"/"+id("limited")+"\n")
	n.runs(5, "limited", 1)
	n.write(5, "stat", stat(5, "Z", 1))
	s.Sample()
	s.Sample()
	if want := map[int]int{1: 10, 2: 20, 3: 30}; !maps.Equal(got.busy, want) {
		t.Errorf("busy are %v, want %v", got.busy, want)
	}
	if want := map[int]string{1: id("limited"), 3: id("plain")}; !maps.Equal(got.containers, want) {
		t.Errorf("they are in %v, want %v", got.containers, want)
	}
	if len(library.asked) != 2 || library.asked[0] != 0 || library.asked[1] != 7 {
		t.Errorf("asked since %v, want 0 and 7", library.asked)
	}
}

// TestWorking: of containers whose processes have all been found, and once by each time stamp.
func TestWorking(t *testing.T) {
	n := newNode(t)
	library := &sampling{}
	s := &Sampler{Devices: sampledNode{library}, Containers: n.Containers, Proc: n.Proc, Log: n.Log}
	for pid, name := range map[int]string{1: "limited", 2: "", 3: "plain", 4: "limited", 5: "limited"} {
		n.runs(pid, name, 1)
	}
	for range 2 {
		if got, err := s.Working(gpu0); err != nil || !maps.Equal(got, map[string]bool{id("limited"): true, id("plain"): true}) {
			t.Errorf("%v, %v", got, err)
		}
	}
	if !slices.Equal(library.asked, []uint64{0, 7}) {
		t.Errorf("asked since %v", library.asked)
	}
	n.write(5, "stat", stat(5, "Z", 1))
	if got, err := s.Working(gpu0); !errors.Is(err, errEnded) {
		t.Errorf("a process has ended: %v, %v", got, err)
	}
	if got, err := s.Working("GPU-1"); err == nil {
		t.Errorf("NVML says nothing: %v", got)
	}
}
