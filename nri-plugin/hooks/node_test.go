// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/mode/driverlimit"
	"vernier.dev/vernier/nri-plugin/mode/exclusive"
	"vernier.dev/vernier/nri-plugin/mode/limiter"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

// Two devices of a simulated node.
const (
	gpu0 = "GPU-00000000-0000-0000-0000-000000000000"
	gpu1 = "GPU-11111111-1111-1111-1111-111111111111"
	size = v1alpha1.MiB(81920)
)

// testNode is a node agent without the API server and without NVML.
type testNode struct {
	*Plugin
	ledger  *testLedger
	limiter *limiter.Limiter
	gpus    *testGPUs
	events  *testEvents
	state   string

	// update is the runtime's, for batched.
	update func([]*api.ContainerUpdate) ([]*api.ContainerUpdate, error)

	mu     sync.Mutex
	killed []string
}

func newNode(t testing.TB) *testNode {
	t.Helper()
	dir := t.TempDir()
	nritest.UnmountAfter(t, dir)
	library := filepath.Join(dir, "libvgpu.so")
	must.Do(t, os.WriteFile(library, []byte("library"), 0o600))
	n := &testNode{
		ledger: &testLedger{}, gpus: newGPUs(), events: &testEvents{},
		state: filepath.Join(dir, "state"),
	}
	files := must.Get(limiter.New(n.state, library, &driverlimit.Limit{
		Devices: n.gpus,
		Leaf:    func(_ uint32, container string) (string, error) { return "/cgroup/" + container, nil },
	}))(t)
	n.limiter = files
	n.Plugin = &Plugin{
		Ledger: n.ledger, Devices: n.gpus, Table: &attach.ContainerTable{}, Report: n.events, Log: logr.Discard(),
		Modes: mode.Set{v1alpha1.ModeLimiter: files, v1alpha1.ModeExclusive: exclusive.Mode{}},
		Kill: func(_ uint32, container string) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.killed = append(n.killed, container)
			return nil
		},
	}
	return n
}

// connected is a node agent that a runtime has taken up.
func connected(t *testing.T) (*testNode, *nritest.Runtime) {
	t.Helper()
	n, r := newNode(t), nritest.Start(t)
	connect(t, r, n.Plugin)
	return n, r
}

// granted is connected, and a pod that has a slice of gpu0.
func granted(t *testing.T) (*testNode, *nritest.Runtime, *api.PodSandbox) {
	t.Helper()
	n, r := connected(t)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	return n, r, pod
}

// restarted is the plugin of an agent's next process, on the same node.
func (n *testNode) restarted() *Plugin {
	p := n.Plugin
	return &Plugin{Ledger: p.Ledger, Devices: p.Devices, Modes: p.Modes, Table: &attach.ContainerTable{}, Report: p.Report, Kill: p.Kill, Log: p.Log}
}

// loseSpec takes every slice out of the ledger, loseLedger the ledger.
func (n *testNode) loseSpec() { n.ledger.watched.Spec = v1alpha1.SliceLedgerSpec{} }

func (n *testNode) loseLedger() { n.ledger.watched = v1alpha1.SliceLedger{} }

// testLedger is what the watch has delivered, and what the API server has.
type testLedger struct {
	mu      sync.Mutex
	watched v1alpha1.SliceLedger
	server  *v1alpha1.SliceLedger
	err     error
	// behind is a watch that has not shown what was moved; unhealthy are devices that the
	// ledger does not show as well.
	behind    bool
	unhealthy map[string]bool
	// reads from the API server.
	reads int
}

// index is that of a ledger whose status shows its devices.
func (l *testLedger) index(of *v1alpha1.SliceLedger) *ledger.Index {
	if of == nil {
		return ledger.NewIndex(nil)
	}
	of = of.DeepCopy()
	for _, d := range of.Spec.Devices {
		of.Status.Devices = append(of.Status.Devices, v1alpha1.DeviceStatus{UUID: d.UUID, Healthy: !l.unhealthy[d.UUID]})
	}
	return ledger.NewIndex(of)
}

func (l *testLedger) Behind() bool { return l.behind }

// grant puts slices into the ledger as the watch shows it.
func (l *testLedger) grant(uuid string, slices ...v1alpha1.Slice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watched.Spec.Devices = append(l.watched.Spec.Devices,
		v1alpha1.DeviceLedger{UUID: uuid, Core: v1alpha1.WholeGPU, Mem: size, Slices: slices})
}

func (l *testLedger) Index() *ledger.Index {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index(&l.watched)
}

func (l *testLedger) Fetch(ctx context.Context) (*ledger.Index, error) {
	if end, bounded := ctx.Deadline(); !bounded || time.Until(end) > fetchTimeout {
		return nil, errors.New("a read without a bound of its own")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	return l.index(l.server), l.err
}

type nvml interface{ device.Library }

// testGPUs are healthy devices whose driver has memory limits.
type testGPUs struct {
	// The rest of NVML is not called.
	nvml
	mu        sync.Mutex
	unhealthy map[string]string
	mig       map[string]v1alpha1.MIGState
	driver    v1alpha1.DriverStatus
	limits    map[string]v1alpha1.MiB
	// falsify changes a limit on its way into the driver.
	falsify func(v1alpha1.MiB) v1alpha1.MiB
	setErr  error
	// instances of gpu0, where that is in MIG mode.
	instances []v1alpha1.MIGInstance
	// numa are the NUMA nodes of devices, of those that have one.
	numa map[string]int32
	// more devices than gpu0 and gpu1.
	more []v1alpha1.DeviceStatus
	// refine adds to the snapshot, if set.
	refine func(*device.Snapshot)
	// unscanned: NVML has not answered yet.
	unscanned bool
	// onCheck runs inside every creation that has slices.
	onCheck func()
	// onRead runs before a limit is read back.
	onRead func()
	// slow, if set, is what setting a limit and reading one back wait for.
	slow chan struct{}
}

func newGPUs() *testGPUs {
	return &testGPUs{
		unhealthy: map[string]string{}, limits: map[string]v1alpha1.MiB{}, driver: v1alpha1.DriverStatus{MemoryLimits: true},
		falsify: func(m v1alpha1.MiB) v1alpha1.MiB { return m },
	}
}

func (g *testGPUs) Check(uuid string, mem v1alpha1.MiB) error {
	if g.onCheck != nil {
		g.onCheck()
	}
	if reason := g.unhealthy[uuid]; reason != "" {
		return errors.New(reason)
	}
	if mem != size {
		return fmt.Errorf("%d MiB", mem)
	}
	return nil
}

func (g *testGPUs) Library() (device.Library, error)    { return g, nil }
func (g *testGPUs) Scan() (device.Snapshot, error)      { return device.Snapshot{}, nil }
func (g *testGPUs) Memory(string) (v1alpha1.MiB, error) { return size, nil }
func (g *testGPUs) Processes(string) ([]int, error)     { return nil, nil }
func (g *testGPUs) Use(string) (device.Use, error)      { return device.Use{}, nil }
func (g *testGPUs) Activity(string) (device.Activity, error) {
	return nil, device.ErrUnsupported
}
func (g *testGPUs) WaitEvent(time.Duration) bool { return false }
func (g *testGPUs) SetMemoryLimit(uuid, cgroup string, m v1alpha1.MiB) error {
	g.wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.setErr != nil {
		return g.setErr
	}
	g.limits[uuid+cgroup] = g.falsify(m)
	return nil
}

func (g *testGPUs) MemoryLimit(uuid, cgroup string) (v1alpha1.MiB, error) {
	g.wait()
	if g.onRead != nil {
		g.onRead()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits[uuid+cgroup], nil
}

func (g *testGPUs) wait() {
	g.mu.Lock()
	slow := g.slow
	g.mu.Unlock()
	if slow != nil {
		<-slow
	}
}

func (g *testGPUs) Snapshot() (device.Snapshot, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := device.Snapshot{Driver: g.driver, Devices: []v1alpha1.DeviceStatus{
		{UUID: gpu0, Mem: size, MIG: g.mig[gpu0]}, {UUID: gpu1, Index: 1, Mem: size, MIG: g.mig[gpu1]},
	}}
	if g.mig[gpu0] == v1alpha1.MIGEnabled {
		s.Devices[0].Profiles = []v1alpha1.MIGProfile{{ID: 14, Size: 2}}
		s.Devices[0].Instances = slices.Clone(g.instances)
	}
	for i := range s.Devices {
		if node, has := g.numa[s.Devices[i].UUID]; has {
			s.Devices[i].NUMA = &node
		}
	}
	s.Devices = append(s.Devices, g.more...)
	if g.refine != nil {
		g.refine(&s)
	}
	return s, !g.unscanned
}

func (g *testGPUs) Instances(string) ([]v1alpha1.MIGInstance, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.instances), nil
}

func (g *testGPUs) Refresh() error { return nil }

type testEvents struct {
	mu   sync.Mutex
	said []string
}

func (e *testEvents) Warn(pod PodRef, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.said = append(e.said, pod.Name+" "+reason+" "+message)
}

// podOf makes a pod as the runtime shows it. With shares, when not empty, it has
// the annotations that the webhook writes.
func podOf(name, shares string) *api.PodSandbox {
	pod := &api.PodSandbox{Id: "sandbox-" + name, Name: name, Namespace: "team", Uid: "uid-" + name}
	if shares != "" {
		pod.Annotations = map[string]string{
			v1alpha1.AnnotationShares:          shares,
			v1alpha1.AnnotationRequiredPlugins: v1alpha1.RequiredPluginsValue,
		}
	}
	return pod
}

// containerOf makes a container of the pod, with the environment of its image.
func containerOf(pod *api.PodSandbox, name string, env ...string) *api.Container {
	return &api.Container{
		Id: "id-" + pod.Name + "-" + name, PodSandboxId: pod.Id, Name: name, Env: env, Pid: 4711,
		Linux: &api.LinuxContainer{Resources: &api.LinuxResources{
			Devices: []*api.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
		}},
	}
}

func privileged(c *api.Container) *api.Container {
	c.Linux.Resources.Devices = []*api.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	return c
}

// share30 asks for 30 core and 20480 MiB for container main.
const share30 = `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":30,"memPercent":25}}}`

// slice30 is what the ledger grants for it.
func slice30(pod *api.PodSandbox) v1alpha1.Slice {
	return v1alpha1.Slice{Pod: uid(pod), Owner: owner(pod), Ctr: "main", Core: 30, Mem: 20480}
}

func env(a *api.ContainerAdjustment) map[string]string {
	m := map[string]string{}
	for _, e := range a.GetEnv() {
		m[e.GetKey()] = e.GetValue()
	}
	return m
}

func cdiNames(a *api.ContainerAdjustment) []string {
	var names []string
	for _, d := range a.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	slices.Sort(names)
	return names
}

// refusedFor asserts that a container was refused and that the text says so much.
func refusedFor(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("Invariant 2: it was not refused")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the refusal does not say %q: %v", part, err)
		}
	}
}
