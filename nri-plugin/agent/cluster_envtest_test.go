// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/capacity"
	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/mode/mps"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

const (
	gpu0 = "GPU-00000000-0000-0000-0000-000000000000"
	gpu1 = "GPU-11111111-1111-1111-1111-111111111111"
	size = v1alpha1.MiB(81920)
)

// cluster is an API server and a client that may do everything.
type cluster struct {
	config *rest.Config
	admin  client.Client
	nodes  int
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	config := apiserver.Start(t, apiserver.Options{Manifests: []string{
		"namespace.yaml", "rbac/node.yaml", "admission/policy.yaml", "admission/node-policy.yaml"}})
	scheme := runtime.NewScheme()
	must.Do(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	admin := must.Get(client.New(config, client.Options{Scheme: scheme}))(t)
	return &cluster{config: config, admin: admin}
}

func (c *cluster) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 90*time.Second, true,
		func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

func (c *cluster) createPod(t *testing.T, name, node string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "image"}}},
	}
	must.Do(t, c.admin.Create(t.Context(), pod))
	return pod
}

func (c *cluster) delete(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	must.Do(t, c.admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
}

// node is one node: its agent, its runtime and its GPUs.
type node struct {
	*cluster
	name    string
	uid     types.UID
	runtime *nritest.Runtime
	wire    *nritest.Wire
	gpus    *gpus
	options Options
	markers int
}

func (c *cluster) newNode(t *testing.T) *node {
	t.Helper()
	c.nodes++
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + strconv.Itoa(c.nodes)}}
	must.Do(t, c.admin.Create(t.Context(), object))
	object.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}
	object.Status.Allocatable = object.Status.Capacity
	must.Do(t, c.admin.Status().Update(t.Context(), object))
	dir := t.TempDir()
	nritest.UnmountAfter(t, dir)
	library := filepath.Join(dir, "libvgpu.so")
	must.Do(t, os.WriteFile(library, []byte("library"), 0o600))
	n := &node{cluster: c, name: object.Name, uid: object.UID, runtime: nritest.Start(t), gpus: newGPUs()}
	n.wire = n.runtime.ThroughWire(t)
	config := apiserver.AsServiceAccount(c.config, v1alpha1.NodeServiceAccount)
	// What the API server knows of the token of a pod on the node.
	config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {n.name}}
	processors := must.Get(cgroup.NewProcessors("/proc"))(t)
	n.options = Options{
		Node: n.name, Config: config,
		NRISocket: n.runtime.Socket, StateDir: filepath.Join(dir, "state"), LimiterLibrary: library,
		MetricsAddr: "0", HealthAddr: "0", Log: logr.Discard(), ScanPeriod: 50 * time.Millisecond,
		Open: func() (device.Library, error) { return n.gpus, nil },
		Leaf: func(_ uint32, container string) (string, error) { return "/cgroup/" + container, nil },
		MPS:  func() (mps.Daemons, error) { return nil, errors.New("no MPS here") },

		Processors: processors, OpportunisticCPU: 80,
	}
	return n
}

// start runs the agent until the test ends, or stop is called, and returns once
// the runtime asks it.
func (n *node) start(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		must.Report(t, Run(ctx, n.options))
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(stop)
	n.awaitAsked(t)
	n.awaitLedger(t, "it is there", func(*v1alpha1.SliceLedger) bool { return true })
	return stop
}

// awaitAsked returns once the runtime asks the agent.
func (n *node) awaitAsked(t *testing.T) {
	t.Helper()
	plain := &api.PodSandbox{Id: "plain", Name: "plain", Namespace: "default", Uid: "plain"}
	n.await(t, "the runtime asks the agent", func() bool {
		adjust, err := n.runtime.Create(plain, container(plain))
		return err == nil && len(adjust.GetEnv()) > 0
	})
}

// settled returns when the agent has acted on everything until now: it gives a
// marker away, which is released after all that came before.
func (n *node) settled(t *testing.T) {
	t.Helper()
	n.markers++
	marker := types.UID(fmt.Sprintf("zz-marker-%d", n.markers))
	n.grant(t, marker, fmt.Sprintf("default/no-such-pod-%d", n.markers))
	n.awaitReleased(t, marker, true)
	n.revoke(t, marker)
	n.awaitReleased(t, marker, false)
}

func (n *node) awaitReleased(t *testing.T, pod types.UID, want bool) {
	t.Helper()
	n.awaitLedger(t, fmt.Sprintf("%s released is %t", pod, want), func(l *v1alpha1.SliceLedger) bool {
		for _, uid := range l.Status.Released {
			if uid == pod {
				return want
			}
		}
		return !want
	})
}

func (n *node) node(t *testing.T) *corev1.Node {
	t.Helper()
	object := &corev1.Node{}
	must.Do(t, n.admin.Get(t.Context(), client.ObjectKey{Name: n.name}, object))
	return object
}

func (n *node) ledger(t *testing.T) *v1alpha1.SliceLedger {
	t.Helper()
	l := &v1alpha1.SliceLedger{}
	must.Do(t, n.admin.Get(t.Context(), client.ObjectKey{Name: n.name}, l))
	return l
}

func (n *node) awaitLedger(t *testing.T, what string, holds func(*v1alpha1.SliceLedger) bool) *v1alpha1.SliceLedger {
	t.Helper()
	l := &v1alpha1.SliceLedger{}
	n.await(t, what, func() bool {
		*l = v1alpha1.SliceLedger{}
		return n.admin.Get(t.Context(), client.ObjectKey{Name: n.name}, l) == nil && holds(l)
	})
	return l
}

func (n *node) awaitCapacity(t *testing.T, devices int) {
	t.Helper()
	all := []v1alpha1.DeviceStatus{{Mem: size}, {Mem: size}}
	want := capacity.Of(all[:devices])
	n.await(t, fmt.Sprintf("the capacity is that of %d devices", devices), func() bool {
		status := n.node(t).Status
		for name, quantity := range want {
			got, allocatable := status.Capacity[name], status.Allocatable[name]
			if got.Cmp(quantity) != 0 || allocatable.Cmp(quantity) != 0 {
				return false
			}
		}
		return true
	})
}

// edit changes a device of the spec, as the allocator does.
func (n *node) edit(t *testing.T, uuid string, change func(*v1alpha1.DeviceLedger)) {
	t.Helper()
	must.Do(t, retry.RetryOnConflict(wait.Backoff{Duration: 20 * time.Millisecond, Steps: 500}, func() error {
		l := n.ledger(t)
		at := slices.IndexFunc(l.Spec.Devices, func(d v1alpha1.DeviceLedger) bool { return d.UUID == uuid })
		if at < 0 {
			at = len(l.Spec.Devices)
			l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: uuid, Core: v1alpha1.WholeGPU, Mem: size})
		}
		change(&l.Spec.Devices[at])
		return n.admin.Update(t.Context(), l)
	}))
}

func (n *node) grant(t *testing.T, pod types.UID, owner string) {
	t.Helper()
	n.edit(t, gpu0, func(d *v1alpha1.DeviceLedger) {
		d.Slices = append(d.Slices, v1alpha1.Slice{Pod: pod, Owner: owner, Ctr: "main", Core: 10, Mem: 1024})
	})
}

func (n *node) revoke(t *testing.T, pod types.UID) {
	t.Helper()
	n.edit(t, gpu0, func(d *v1alpha1.DeviceLedger) {
		var left []v1alpha1.Slice
		for _, s := range d.Slices {
			if s.Pod != pod {
				left = append(left, s)
			}
		}
		d.Slices = left
	})
}

// runPod binds a pod to the node, grants it a slice and starts its container.
func (n *node) runPod(t *testing.T, name string) (*corev1.Pod, *api.PodSandbox, *api.Container) {
	t.Helper()
	pod := n.createPod(t, n.name+"-"+name, n.name)
	// On what no ledger shows as well nobody grants, and nothing starts.
	n.awaitLedger(t, "its devices show", func(l *v1alpha1.SliceLedger) bool {
		return slices.ContainsFunc(l.Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == gpu0 && d.Healthy })
	})
	n.grant(t, pod.UID, pod.Namespace+"/"+pod.Name)
	sandbox := &api.PodSandbox{
		Id: "sandbox-" + string(pod.UID), Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID),
		Annotations: map[string]string{v1alpha1.AnnotationShares: `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memMiB":1024}}}`},
	}
	c := container(sandbox)
	n.await(t, "the API server answers in time where the agent's watch is behind", func() bool {
		_, err := n.runtime.Create(sandbox, c)
		if err != nil && !strings.Contains(err.Error(), "it is tried again once the API server answers") {
			t.Fatal(err)
		}
		return err == nil
	})
	must.Do(t, n.runtime.StartContainer(sandbox, c))
	return pod, sandbox, c
}

func container(sandbox *api.PodSandbox) *api.Container {
	return &api.Container{Id: "id-" + sandbox.Id, PodSandboxId: sandbox.Id, Name: "main", Pid: 4711}
}

type nvml interface{ device.Library }

// gpus are two A100 whose driver has memory limits.
type gpus struct {
	// The rest of NVML is not called.
	nvml

	mu     sync.Mutex
	reason string
	broken error
	driver string
	limits map[string]v1alpha1.MiB
	// mig are those in MIG mode, by their UUIDs; switched is called before one is put
	// into it. processes use a device.
	mig       []string
	switched  func(uuid string)
	processes map[string][]int
	// slow, if set, is what reading a memory limit waits for.
	slow chan struct{}
}

func newGPUs() *gpus { return &gpus{driver: "615", limits: map[string]v1alpha1.MiB{}} }

// break1 makes the second one unhealthy, or healthy again.
func (g *gpus) break1(reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reason = reason
}

// fails has NVML fail, or answer again, with that version of the driver.
func (g *gpus) fails(err error, driver string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.broken, g.driver = err, driver
}

func (g *gpus) Scan() (device.Snapshot, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken != nil {
		return device.Snapshot{}, g.broken
	}
	s := device.Snapshot{
		Driver: v1alpha1.DriverStatus{Version: g.driver, MemoryLimits: true},
		Devices: []v1alpha1.DeviceStatus{
			{UUID: gpu0, Model: "A100", Mem: size, MIG: v1alpha1.MIGDisabled, Healthy: true},
			{UUID: gpu1, Index: 1, Minor: 1, Model: "A100", Mem: size, MIG: v1alpha1.MIGDisabled, Healthy: g.reason == "", Reason: g.reason},
		},
	}
	s.Topology = &v1alpha1.TopologyStatus{NVLink: []v1alpha1.DeviceSet{"0-1"}}
	for i := range s.Devices {
		if slices.Contains(g.mig, s.Devices[i].UUID) {
			s.Devices[i].MIG = v1alpha1.MIGEnabled
		}
	}
	return s, nil
}

// EnableMIG notes which device the ledger has nothing on, and shows as unhealthy, just then.
func (g *gpus) EnableMIG(uuid string) error {
	if g.switched != nil {
		g.switched(uuid)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mig = append(g.mig, uuid)
	return nil
}

func (g *gpus) Processes(uuid string) ([]int, error) { return g.processes[uuid], nil }

func (g *gpus) Memory(string) (v1alpha1.MiB, error) { return size, nil }

func (g *gpus) Use(string) (device.Use, error) { return device.Use{}, nil }

func (g *gpus) Activity(string) (device.Activity, error) { return nil, device.ErrUnsupported }

func (g *gpus) SetMemoryLimit(uuid, cgroup string, m v1alpha1.MiB) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits[uuid+cgroup] = m
	return nil
}

func (g *gpus) MemoryLimit(uuid, cgroup string) (v1alpha1.MiB, error) {
	g.mu.Lock()
	slow := g.slow
	g.mu.Unlock()
	if slow != nil {
		<-slow
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits[uuid+cgroup], nil
}

// hang has no memory limit read until the returned function is called.
func (g *gpus) hang() (answers func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	slow := make(chan struct{})
	g.slow = slow
	return sync.OnceFunc(func() { close(slow) })
}

// WaitEvent never sees an event: this driver tells of bad health by the scan.
func (g *gpus) WaitEvent(timeout time.Duration) bool {
	<-time.After(timeout)
	return false
}

// A node advertises the units that it has of each class, 0 where it has none of its models. Those
// of a class that is deleted stay with the last pod that asks for them, and go after it.
func testClasses(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.start(t)
	n.awaitCapacity(t, 2)
	class := func(name, model string) *v1alpha1.GPUClass {
		of := &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.GPUClassSpec{Models: []string{model}, Unit: v1alpha1.GPUUnit{Core: 10}}}
		must.Do(t, c.admin.Create(t.Context(), of))
		return of
	}
	gold, _ := class("gold", "A100"), class("other", "none of these")
	units := func(name, want string) {
		t.Helper()
		n.await(t, "the node has "+want+" units of "+name, func() bool {
			status := n.node(t).Status
			capacity, has := status.Capacity[v1alpha1.ClassResource(name)]
			allocatable, hasToo := status.Allocatable[v1alpha1.ClassResource(name)]
			return has == hasToo && has == (want != "") && (!has || capacity.String() == want && allocatable.String() == want)
		})
	}
	units("gold", "20")
	units("other", "0")
	// A static pod, which needs no admission.
	kubelet := apiserver.Client(t, apiserver.As(c.config, "system:node:"+n.name, "system:nodes", "system:masters"))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "of-a-class", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"}}, Spec: corev1.PodSpec{NodeName: n.name,
		Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{v1alpha1.ClassResource("gold"): resource.MustParse("3")}}}}}}
	must.Do(t, kubelet.Create(t.Context(), pod))
	must.Do(t, c.admin.Delete(t.Context(), gold))
	units("gold", "3")
	must.Do(t, c.admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	units("gold", "")
	units("other", "0")
}

// A device is put into MIG mode only on a node that is labelled for it, and only while
// nothing is on it; nothing can be granted there while it is done, and what was granted
// just before keeps the device.
func testMIGMode(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.gpus.processes = map[string][]int{gpu1: {7}}
	var during []v1alpha1.DeviceStatus
	n.gpus.switched = func(uuid string) {
		i := slices.IndexFunc(n.ledger(t).Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == uuid })
		during = append(during, n.ledger(t).Status.Devices[i])
	}
	label := func(value string) {
		t.Helper()
		object := n.node(t)
		patch := client.MergeFrom(object.DeepCopy())
		object.Labels = map[string]string{v1alpha1.LabelMIGMode: value}
		must.Do(t, n.admin.Patch(t.Context(), object, patch))
	}
	in := func() (all []string) {
		for _, d := range n.ledger(t).Status.Devices {
			if d.MIG == v1alpha1.MIGEnabled {
				all = append(all, d.UUID)
			}
		}
		return all
	}
	n.start(t)
	n.awaitLedger(t, "the devices show", func(l *v1alpha1.SliceLedger) bool { return len(l.Status.Devices) == 2 })
	granted := n.createPod(t, n.name+"-granted", n.name)
	n.grant(t, granted.UID, "default/"+granted.Name)
	label("other")
	n.settled(t)
	label(v1alpha1.LabelMIGModeEnabled)
	n.settled(t)
	if got := in(); len(got) != 0 {
		t.Errorf("%v are in MIG mode: one has a slice, the other a process", got)
	}
	n.delete(t, granted)
	n.revoke(t, granted.UID)
	n.await(t, "the empty device is in MIG mode", func() bool { return slices.Equal(in(), []string{gpu0}) })
	if len(during) != 1 || during[0].UUID != gpu0 || during[0].Healthy || during[0].Reason != "it is being put into MIG mode" {
		t.Errorf("while it was switched the ledger showed %+v", during)
	}
	n.await(t, "it takes slices again", func() bool {
		return slices.ContainsFunc(n.ledger(t).Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == gpu0 && d.Healthy })
	})
}
