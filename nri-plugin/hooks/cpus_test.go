// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

// twoSockets gives the node CPUs 0 to 3 on NUMA node 0 with gpu0, and 4 to 7 on node 1 with
// gpu1.
func twoSockets(t *testing.T, n *testNode) {
	t.Helper()
	n.Sysfs = t.TempDir()
	for node, cpus := range map[string]string{"node0": "0-3\n", "node1": "4-7\n"} {
		dir := filepath.Join(n.Sysfs, "devices/system/node", node)
		must.Do(t, os.MkdirAll(dir, 0o755))
		must.Do(t, os.WriteFile(filepath.Join(dir, "cpulist"), []byte(cpus), 0o600))
	}
	n.gpus.numa = map[string]int32{gpu0: 0, gpu1: 1}
}

// asks makes a pod with that topology, and container main with these CPUs.
func asks(name, topology string, cpus *api.LinuxCPU) (*api.PodSandbox, *api.Container) {
	pod := podOf(name, share30)
	pod.Annotations[v1alpha1.AnnotationTopology], pod.Pid = topology, 4710
	c := containerOf(pod, "main")
	c.Linux.Resources.Cpu = cpus
	return pod, c
}

// cpusOfMilli are a request and a limit as the kubelet writes them; 0 is no limit.
func cpusOfMilli(request, limit int64) *api.LinuxCPU {
	cpus := &api.LinuxCPU{Shares: api.UInt64(uint64(request * 1024 / 1000))}
	if limit > 0 {
		cpus.Quota, cpus.Period = api.Int64(limit*100), api.UInt64(100000)
	}
	return cpus
}

// podHas has each pod's cgroup hold it to these CPUs, as v1 does.
func podHas(cpus string) func(*testing.T, *testNode) {
	return func(t *testing.T, n *testNode) {
		has := must.Get(cpuset.Parse(cpus))(t)
		n.PodCPUs = func(pid uint32, sandbox string) (cpuset.CPUSet, error) {
			if pid != 4710 || !strings.HasPrefix(sandbox, "sandbox-") {
				return cpuset.CPUSet{}, fmt.Errorf("process %d of sandbox %s", pid, sandbox)
			}
			return has, nil
		}
	}
}

// Under CPU manager policy none a container that wishes it is bound to the CPUs of its GPU's
// NUMA node, as far as these go; never to its memory.
func TestBindCPUs(t *testing.T) {
	for name, c := range map[string]struct {
		topology string
		cpus     *api.LinuxCPU
		change   func(*testing.T, *testNode)
		bound    string
		says     string
	}{
		"numa":            {topology: "numa", bound: "4-7"},
		"numa, required":  {topology: "numa:required", bound: "4-7"},
		"pcie":            {topology: "pcie", bound: "4-7"},
		"nvlink":          {topology: "nvlink"},
		"no wish":         {},
		"the limit fits":  {topology: "numa", cpus: cpusOfMilli(1000, 4000), bound: "4-7"},
		"too wide":        {topology: "numa", cpus: cpusOfMilli(1000, 4001), says: "its limit of 4.001 CPUs is more than the 4 that the NUMA node has. It runs on all CPUs of the node"},
		"too much":        {topology: "numa", cpus: cpusOfMilli(3700, 0), says: "more than 90 % of the 4"},
		"switched off":    {topology: "numa", change: func(_ *testing.T, n *testNode) { n.BindCPUs = false }},
		"nowhere":         {topology: "numa", change: func(_ *testing.T, n *testNode) { n.gpus.numa = nil }},
		"without CPUs":    {topology: "numa", change: func(_ *testing.T, n *testNode) { n.gpus.numa[gpu1] = 2 }, says: "NUMA node 2, which GPU " + gpu1 + " is of: the NUMA node has none"},
		"given by static": {topology: "numa", cpus: &api.LinuxCPU{Cpus: "0-1"}},
		"v1, all but one": {topology: "numa", change: podHas("0-6"), bound: "4-6"},
		"v1, none":        {topology: "numa", change: podHas("0-3"), says: "the pod has none of them under cgroup v1"},
		"v1, not to be read": {topology: "numa", change: func(_ *testing.T, n *testNode) {
			n.PodCPUs = func(uint32, string) (cpuset.CPUSet, error) { return cpuset.CPUSet{}, errors.New("no such file") }
		}, says: "under cgroup v1 cannot be read: no such file"},
		"one NUMA node": {topology: "numa", change: func(t *testing.T, n *testNode) {
			must.Do(t, os.RemoveAll(filepath.Join(n.Sysfs, "devices/system/node/node0")))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n, r := newNode(t), nritest.Start(t)
			twoSockets(t, n)
			n.BindCPUs = true
			if c.change != nil {
				c.change(t, n)
			}
			connect(t, r, n.Plugin)
			pod, ctr := asks("a", c.topology, c.cpus)
			n.ledger.grant(gpu1, slice30(pod))
			got := must.Get(r.Create(pod, ctr))(t)
			cpu := got.GetLinux().GetResources().GetCpu()
			if cpu.GetCpus() != c.bound || cpu.GetMems() != "" {
				t.Errorf("bound to CPUs %q and memory %q, want CPUs %q", cpu.GetCpus(), cpu.GetMems(), c.bound)
			}
			said := strings.Join(n.events.said, "\n")
			if (c.says == "") != (said == "") || !strings.Contains(said, c.says) {
				t.Errorf("events %q, want %q", said, c.says)
			}
			if c.says != "" && !strings.Contains(said, ReasonUnbound) {
				t.Errorf("events %q, want reason %s", said, ReasonUnbound)
			}
		})
	}
}

// A container whose GPUs are of several NUMA nodes has no CPUs beside all of them.
func TestBindCPUsOfSeveralNodes(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	twoSockets(t, n)
	n.BindCPUs = true
	connect(t, r, n.Plugin)
	pod, ctr := asks("a", "numa", nil)
	pod.Annotations[v1alpha1.AnnotationShares] = `{"version":"v1alpha1","containers":{"main":{"gpus":2,"core":30,"memPercent":25}}}`
	n.ledger.grant(gpu0, slice30(pod))
	n.ledger.grant(gpu1, slice30(pod))
	if got, err := r.Create(pod, ctr); err != nil || got.GetLinux().GetResources().GetCpu().GetCpus() != "" {
		t.Errorf("%v, %v", got, err)
	}
	if said := strings.Join(n.events.said, "\n"); !strings.Contains(said, "GPU "+gpu1+" is of NUMA node 1") {
		t.Errorf("events %q", said)
	}
}

// What is bound to a NUMA node counts until it has ended, also for an agent that was started
// again; so does a new request of a pod that was resized.
func TestBoundCPUsAddUp(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	twoSockets(t, n)
	n.BindCPUs = true
	connect(t, r, n.Plugin)
	var sliced []v1alpha1.Slice
	for _, name := range []string{"a", "b", "c"} {
		pod, _ := asks(name, "numa", nil)
		sliced = append(sliced, slice30(pod))
	}
	n.ledger.grant(gpu1, sliced...)
	bound := func(name string, request int64) string {
		t.Helper()
		pod, ctr := asks(name, "numa", cpusOfMilli(request, 0))
		got := must.Get(r.Create(pod, ctr))(t)
		return got.GetLinux().GetResources().GetCpu().GetCpus()
	}
	podA, a := asks("a", "numa", cpusOfMilli(2000, 0))
	if got := bound("a", 2000); got != "4-7" {
		t.Fatalf("the first is bound to %q", got)
	}
	must.Do(t, r.StartContainer(podA, a))
	if got := bound("b", 1700); got != "" {
		t.Errorf("3.7 of 4 CPUs are bound: %q", got)
	}
	// The kubelet resizes the first.
	must.Get(n.UpdateContainer(t.Context(), podA, a, &api.LinuxResources{Cpu: cpusOfMilli(500, 0)}))(t)
	if got := bound("b", 1700); got != "4-7" {
		t.Errorf("2.2 of 4 CPUs: bound to %q", got)
	}
	// The next agent finds the first running, and of the others nothing.
	next := n.restarted()
	next.Sysfs, next.BindCPUs = n.Sysfs, true
	a.State, a.Env = api.ContainerState_CONTAINER_RUNNING, []string{v1alpha1.EnvSlice + "=" + podA.Uid}
	a.Linux.Resources.Cpu.Cpus = "4-7"
	must.Get(next.Synchronize(t.Context(), []*api.PodSandbox{podA}, []*api.Container{a}))(t)
	podC, c := asks("c", "numa", cpusOfMilli(1700, 0))
	got, _, err := next.CreateContainer(t.Context(), podC, c)
	if err != nil || got.GetLinux().GetResources().GetCpu().GetCpus() != "" {
		t.Errorf("3.7 of 4 CPUs after a restart: %v, %v", got.GetLinux(), err)
	}
}

// What is bound counts also once some of its CPUs are offline. What yields to all others does
// not count, neither for an agent that sees it created nor for one that finds it.
func TestWhatCountsAsBound(t *testing.T) {
	for name, c := range map[string]struct {
		qos     v1alpha1.QoS
		offline bool
		bound   string
	}{
		"bound beside it":  {},
		"some are offline": {offline: true},
		"it yields":        {qos: v1alpha1.QoSOpportunistic, bound: "4-7"},
	} {
		t.Run(name, func(t *testing.T) {
			n, r := newNode(t), nritest.Start(t)
			twoSockets(t, n)
			n.BindCPUs = true
			batched(n, n.Plugin)
			connect(t, r, n.Plugin)
			podA, a := asks("a", "numa", cpusOfMilli(2000, 0))
			podA.Annotations[v1alpha1.AnnotationQoS] = string(c.qos)
			podB, b := asks("b", "numa", cpusOfMilli(1700, 0))
			n.ledger.grant(gpu1, slice30(podA), slice30(podB))
			adjust := must.Get(r.Create(podA, a))(t)
			must.Do(t, r.StartContainer(podA, a))
			if c.offline {
				cpus := filepath.Join(n.Sysfs, "devices/system/node/node1/cpulist")
				must.Do(t, os.WriteFile(cpus, []byte("4-6\n"), 0o600))
			}
			next := n.restarted()
			next.Sysfs, next.BindCPUs, next.Batch = n.Sysfs, true, n.Batch
			a.State, a.Env = api.ContainerState_CONTAINER_RUNNING, []string{v1alpha1.EnvSlice + "=" + podA.Uid}
			a.Linux.Resources.Cpu.Cpus = adjust.GetLinux().GetResources().GetCpu().GetCpus()
			must.Get(next.Synchronize(t.Context(), []*api.PodSandbox{podA}, []*api.Container{a}))(t)
			for when, p := range map[string]*Plugin{"created": n.Plugin, "found": next} {
				got, _, err := p.CreateContainer(t.Context(), podB, b)
				if err != nil || got.GetLinux().GetResources().GetCpu().GetCpus() != c.bound {
					t.Errorf("%s: 3.7 of 4 CPUs: %v, %v", when, got.GetLinux().GetResources().GetCpu(), err)
				}
			}
		})
	}
}

// A container that is resized beyond the NUMA node it is bound to has all CPUs of the node; one
// that still fits, or that the kubelet holds to these CPUs, keeps them.
func TestResizeUnbinds(t *testing.T) {
	for name, c := range map[string]struct {
		topology string
		to       *api.LinuxCPU
		offline  bool
		pod      string
		changed  string
		says     string
	}{
		"it fits":                 {topology: "numa", to: cpusOfMilli(1500, 4000)},
		"its limit is too wide":   {topology: "numa", to: cpusOfMilli(1000, 5000), changed: "0-7", says: "is no longer bound to the CPUs of NUMA node 1: its limit of 5 CPUs is more than the 4"},
		"its request is too much": {topology: "pcie:required", to: cpusOfMilli(2000, 0), changed: "0-7", says: "the requests of the containers that are bound there would be 4 CPUs"},
		"the kubelet's CPUs":      {topology: "numa", to: &api.LinuxCPU{Cpus: "4-7", Shares: api.UInt64(8192)}},
		"some are offline":        {topology: "numa", to: cpusOfMilli(1500, 4000), offline: true, changed: "0-6", says: "its limit of 4 CPUs is more than the 3"},
		"no wish":                 {to: cpusOfMilli(8000, 0)},
		"v1":                      {topology: "numa", to: cpusOfMilli(1000, 5000), pod: "2-7", changed: "2-7", says: "its limit of 5 CPUs is more than the 4"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			twoSockets(t, n)
			n.BindCPUs = true
			pod, ctr := asks("a", c.topology, cpusOfMilli(1000, 0))
			other, beside := asks("b", "numa", cpusOfMilli(2000, 0))
			n.ledger.grant(gpu1, slice30(pod), slice30(other))
			for p, ctr := range map[*api.PodSandbox]*api.Container{pod: ctr, other: beside} {
				ctr.State, ctr.Env, ctr.Linux.Resources.Cpu.Cpus = api.ContainerState_CONTAINER_RUNNING, []string{v1alpha1.EnvSlice + "=" + p.Uid}, "4-7"
			}
			must.Get(n.Synchronize(t.Context(), []*api.PodSandbox{pod, other}, []*api.Container{ctr, beside}))(t)
			if c.offline {
				cpus := filepath.Join(n.Sysfs, "devices/system/node/node1/cpulist")
				must.Do(t, os.WriteFile(cpus, []byte("4-6\n"), 0o600))
			}
			if c.pod != "" {
				podHas(c.pod)(t, n)
			}
			updates := must.Get(n.UpdateContainer(t.Context(), pod, ctr, &api.LinuxResources{Cpu: c.to}))(t)
			got := ""
			for _, u := range updates {
				got += u.GetLinux().GetResources().GetCpu().GetCpus()
			}
			if got != c.changed {
				t.Errorf("set to %q, want %q", got, c.changed)
			}
			if entry, _ := n.Table.Get(ctr.Id); c.changed != "" && entry.CPUs.Set.String() != c.changed {
				t.Errorf("entered with %s", entry.CPUs.Set)
			}
			said := strings.Join(n.events.said, "\n")
			if (c.says == "") != (said == "") || !strings.Contains(said, c.says) {
				t.Errorf("events %q, want %q", said, c.says)
			}
			// What is not bound any more leaves its CPUs to the next.
			next, third := asks("c", "numa", cpusOfMilli(600, 0))
			n.ledger.grant(gpu1, slice30(next))
			adjust, _, err := n.CreateContainer(t.Context(), next, third)
			if bound := adjust.GetLinux().GetResources().GetCpu().GetCpus(); err != nil || (bound != "") != (c.changed != "") {
				t.Errorf("the next is bound to %q, %v", bound, err)
			}
		})
	}
}

// The status says whether the CPUs that a container is held to are beside its GPU, and follows
// when the kubelet holds it to others.
func TestAligned(t *testing.T) {
	for name, c := range map[string]struct {
		cpus *api.LinuxCPU
		numa map[string]int32
		bind bool
		want *bool
	}{
		"beside it":          {cpus: &api.LinuxCPU{Cpus: "5-6"}, want: ptr.To(true)},
		"on the other node":  {cpus: &api.LinuxCPU{Cpus: "0-1"}, want: ptr.To(false)},
		"on both":            {cpus: &api.LinuxCPU{Cpus: "0-7"}, want: ptr.To(false)},
		"one is offline":     {cpus: &api.LinuxCPU{Cpus: "5-6,9"}, want: ptr.To(true)},
		"held to none":       {},
		"bound by the agent": {bind: true, want: ptr.To(true)},
		"no NUMA node":       {cpus: &api.LinuxCPU{Cpus: "0-1"}, numa: map[string]int32{}},
	} {
		t.Run(name, func(t *testing.T) {
			n, r := newNode(t), nritest.Start(t)
			twoSockets(t, n)
			n.BindCPUs = c.bind
			if c.numa != nil {
				n.gpus.numa = c.numa
			}
			connect(t, r, n.Plugin)
			pod, ctr := asks("a", "numa", c.cpus)
			n.ledger.grant(gpu1, slice30(pod))
			adjust := must.Get(r.Create(pod, ctr))(t)
			must.Do(t, r.StartContainer(pod, ctr))
			check := func(when string, of *Plugin, want *bool) {
				t.Helper()
				if all := of.Table.Slices(); len(all) != 1 || !ptr.Equal(all[0].Aligned, want) {
					t.Errorf("%s: %+v, want aligned %v", when, all, want)
				}
			}
			check("started", n.Plugin, c.want)
			// As the next agent finds it, by what the runtime has.
			next := n.restarted()
			next.Sysfs = n.Sysfs
			ctr.State, ctr.Env = api.ContainerState_CONTAINER_RUNNING, []string{v1alpha1.EnvSlice + "=" + pod.Uid}
			if cpus := adjust.GetLinux().GetResources().GetCpu().GetCpus(); cpus != "" {
				ctr.Linux.Resources.Cpu = &api.LinuxCPU{Cpus: cpus}
			}
			must.Get(next.Synchronize(t.Context(), []*api.PodSandbox{pod}, []*api.Container{ctr}))(t)
			check("found", next, c.want)
			if c.want == nil {
				return
			}
			// The kubelet changes what containers without CPUs of their own share.
			for cpus, want := range map[string]bool{"4": true, "3-4": false} {
				must.Get(next.UpdateContainer(t.Context(), pod, ctr, &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: cpus}}))(t)
				check(cpus, next, &want)
			}
		})
	}
}

// The kubelet changes the CPUs of a container while NVML is asked what holds it.
func TestAlignedWhileObserved(t *testing.T) {
	n := newNode(t)
	twoSockets(t, n)
	pod, ctr := asks("a", "numa", &api.LinuxCPU{Cpus: "4-7"})
	n.ledger.grant(gpu1, slice30(pod))
	ctr.State, ctr.Env = api.ContainerState_CONTAINER_RUNNING, []string{v1alpha1.EnvSlice + "=" + pod.Uid}
	n.gpus.limits[gpu1+"/cgroup/"+ctr.Id] = 20480
	n.gpus.unscanned = true
	must.Get(n.Synchronize(t.Context(), []*api.PodSandbox{pod}, []*api.Container{ctr}))(t)
	n.gpus.unscanned = false
	n.gpus.onRead = func() {
		if _, err := n.UpdateContainer(t.Context(), pod, ctr, &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: "0-7"}}); err != nil {
			t.Error(err)
		}
	}
	n.Observe()
	if all := n.Table.Slices(); len(all) != 1 || !ptr.Equal(all[0].Aligned, ptr.To(false)) {
		t.Errorf("%+v, want it not aligned", all)
	}
}

// With numa:required a container whose CPUs are of another NUMA node than its GPU is refused,
// and its pod is in the list of those to be moved; once its slices are there it is created.
func TestGPUFollowsCPUs(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	twoSockets(t, n)
	changed := 0
	n.Misaligned.Changed = func() { changed++ }
	connect(t, r, n.Plugin)
	pod, ctr := asks("a", "numa:required", &api.LinuxCPU{Cpus: "4-5"})
	n.ledger.grant(gpu0, slice30(pod))
	_, err := r.Create(pod, ctr)
	refusedFor(t, err, v1alpha1.AnnotationTopology+" is numa:required", "CPUs of NUMA node 1", "GPU "+gpu0+" is of NUMA node 0", "moved to GPUs of NUMA node 1", "ask for numa without :required")
	if node, follows := n.Misaligned.Find(uid(pod)); !follows || node != 1 || changed != 1 {
		t.Errorf("follows %v to node %d, after %d changes", follows, node, changed)
	}
	// Another container of the pod, held to CPUs of both nodes: it would be in the way.
	other := containerOf(pod, "other")
	other.Linux.Resources.Cpu = &api.LinuxCPU{Cpus: "2-3,6-7"}
	second := slice30(pod)
	second.Ctr = "other"
	n.ledger.watched.Spec.Devices[0].Slices = append(n.ledger.watched.Spec.Devices[0].Slices, second)
	pod.Annotations[v1alpha1.AnnotationShares] = `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":30,"memPercent":25},"other":{"gpus":1,"core":30,"memPercent":25}}}`
	n.ledger.server = n.ledger.watched.DeepCopy()
	_, err = r.Create(pod, other)
	refusedFor(t, err, "CPUs of NUMA node 1")
	// The allocator has moved both, and the watch is behind.
	n.ledger.server.Spec.Devices[0].UUID = gpu1
	if _, err := r.Create(pod, ctr); err != nil {
		t.Errorf("moved: %v", err)
	}
	if _, err := r.Create(pod, other); err != nil {
		t.Errorf("moved, the other: %v", err)
	}
	if changed != 1 {
		t.Errorf("%d changes", changed)
	}
	// A third that the kubelet gave CPUs of node 0 cannot have the GPUs moved any more.
	n.Misaligned.Keep(func(types.UID, int32) bool { return false })
	n.ledger.watched = *n.ledger.server
	third := containerOf(pod, "main")
	third.Id, third.Linux.Resources.Cpu = "id-third", &api.LinuxCPU{Cpus: "0"}
	_, err = r.Create(pod, third)
	refusedFor(t, err, "where other containers of the pod run", "single-numa-node")
	if _, follows := n.Misaligned.Find(uid(pod)); follows {
		t.Error("a pod that runs is to be moved")
	}
}

// The CPUs that a container shares with others were of one NUMA node for a while, and are of
// both again: nothing refuses it any more, once the allocator moves nothing either.
func TestGPUFollowsSharedCPUs(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	twoSockets(t, n)
	changed := 0
	n.Misaligned.Changed = func() { changed++ }
	connect(t, r, n.Plugin)
	pod, ctr := asks("a", "numa:required", &api.LinuxCPU{Cpus: "4-7"})
	n.ledger.grant(gpu0, slice30(pod))
	_, err := r.Create(pod, ctr)
	refusedFor(t, err, "CPUs of NUMA node 1")
	// The ledger says so, which the watch has not shown.
	n.ledger.server = n.ledger.watched.DeepCopy()
	n.ledger.server.Status.Misaligned = []v1alpha1.MisalignedPod{{Pod: uid(pod), NUMA: 1}}
	ctr.Linux.Resources.Cpu.Cpus = "0-7"
	_, err = r.Create(pod, ctr)
	refusedFor(t, err, "its CPUs are no longer of NUMA node 1", "tried again")
	if _, follows := n.Misaligned.Find(uid(pod)); follows || changed != 2 {
		t.Errorf("follows %v, after %d changes", follows, changed)
	}
	// Until it does not, nor can have moved them since.
	n.ledger.behind = true
	_, err = r.Create(pod, ctr)
	refusedFor(t, err, "its CPUs are no longer of NUMA node 1")
	n.ledger.server.Status.Misaligned = nil
	if _, err := r.Create(pod, ctr); err != nil {
		t.Error(err)
	}
}

// What does not require it is not refused, and neither is what no move would help.
func TestGPUNeedNotFollow(t *testing.T) {
	for name, c := range map[string]struct{ topology, cpus, list string }{
		"preferred":             {topology: "numa", cpus: "4-5"},
		"another level":         {topology: "pcie:required", cpus: "4-5"},
		"no wish":               {cpus: "4-5"},
		"CPUs of several nodes": {topology: "numa:required", cpus: "2-5"},
		"CPUs beside it":        {topology: "numa:required", cpus: "0-1"},
		"sysfs makes no sense":  {topology: "numa:required", cpus: "4-5", list: "?"},
	} {
		n, r := newNode(t), nritest.Start(t)
		twoSockets(t, n)
		if c.list != "" {
			must.Do(t, os.WriteFile(filepath.Join(n.Sysfs, "devices/system/node/node1/cpulist"), []byte(c.list), 0o600))
		}
		connect(t, r, n.Plugin)
		pod, ctr := asks("a", c.topology, &api.LinuxCPU{Cpus: c.cpus})
		n.ledger.grant(gpu0, slice30(pod))
		if _, err := r.Create(pod, ctr); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, follows := n.Misaligned.Find(uid(pod)); follows {
			t.Errorf("%s: to be moved", name)
		}
	}
}

// NUMA nodes that cannot be read are logged once, however many containers come, and again after they could.
func TestNodesUnread(t *testing.T) {
	lines := 0
	p := &Plugin{Sysfs: t.TempDir(), Log: funcr.New(func(string, string) { lines++ }, funcr.Options{})}
	folder := filepath.Join(p.Sysfs, "devices/system/node/node0")
	must.Do(t, os.MkdirAll(folder, 0o700))
	for range 3 {
		if nodes := p.nodes(); len(nodes) > 0 {
			t.Errorf("%v", nodes)
		}
	}
	if lines != 1 {
		t.Errorf("%d lines", lines)
	}
	must.Do(t, os.WriteFile(filepath.Join(folder, "cpulist"), []byte("0-3"), 0o600))
	if nodes := p.nodes(); len(nodes) != 1 || lines != 1 {
		t.Errorf("%v, %d lines", nodes, lines)
	}
	must.Do(t, os.Remove(filepath.Join(folder, "cpulist")))
	if p.nodes(); lines != 2 {
		t.Errorf("%d lines", lines)
	}
}
