// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"
	"math/rand"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"vernier.dev/vernier/allocator/book"
	"vernier.dev/vernier/api/v1alpha1"
)

// world is a cluster in memory: an API server with real compare-and-swap, a stock
// scheduler, node agents, users and some allocators. Everything happens on one
// goroutine, in an order that a seed decides.
type world struct {
	t        *testing.T
	rand     *rand.Rand
	api      client.Client
	replicas []*replicaInTest
	made     int
	nodes    []string
	// running are the slices that started containers hold, by node and pod.
	running map[string]map[types.UID][]runningSlice
	// calm is true once no more faults are wanted.
	calm bool
}

type runningSlice struct {
	uuid  string
	slice v1alpha1.Slice
}

const deviceMiB = 1000

func testScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := kubernetes.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return scheme
}

func newWorld(t *testing.T, seed int64, nodes, replicas int) *world {
	t.Helper()
	w := &world{t: t, rand: rand.New(rand.NewSource(seed)), running: map[string]map[types.UID][]runningSlice{}}
	scheme := testScheme(t)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(v1alpha1.SchemeGroupVersion.WithKind("SliceLedger"), meta.RESTScopeRoot)
	w.api = fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithStatusSubresource(&v1alpha1.SliceLedger{}, &corev1.Pod{}).Build()
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		w.nodes = append(w.nodes, name)
		w.running[name] = map[types.UID][]runningSlice{}
		w.must(w.api.Create(t.Context(), testNode(name)))
		w.must(w.api.Create(t.Context(), testLedger(name)))
		w.must(w.api.Status().Update(t.Context(), withStatus(w.ledger(name))))
	}
	for i := range replicas {
		w.replicas = append(w.replicas, &replicaInTest{world: w, name: fmt.Sprintf("replica-%d", i)})
		w.replicas[i].restart()
	}
	return w
}

func testNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name)},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("200"),
			v1alpha1.ResourceCore: resource.MustParse("200"), v1alpha1.ResourceMemPercent: resource.MustParse("200"), v1alpha1.ResourceMemMiB: resource.MustParse("2000"),
		}},
	}
}

func testLedger(name string) *v1alpha1.SliceLedger {
	return &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("ledger-" + name)}}
}

// withStatus gives the ledger two healthy devices.
func withStatus(l *v1alpha1.SliceLedger) *v1alpha1.SliceLedger {
	for i := range 2 {
		l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{
			UUID: fmt.Sprintf("GPU-%s-%d", l.Name, i), Index: int32(i), Minor: int32(i), Model: "T4", Mem: deviceMiB, Healthy: true})
	}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now()}}
	return l
}

// testPod is a gated pod with a share for each named container.
func testPod(name string, shares map[string]v1alpha1.Share) *corev1.Pod {
	doc := v1alpha1.Shares{Version: v1alpha1.Version, Containers: shares}
	text, err := doc.Encode()
	if err != nil {
		panic(err)
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{
			v1alpha1.AnnotationShares: text, v1alpha1.AnnotationRequiredPlugins: v1alpha1.RequiredPluginsValue}},
		Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.Gate}}},
	}
	for _, c := range sortedNames(shares) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c, Image: "i", Resources: requestOf(shares[c])})
	}
	return p
}

func share(core v1alpha1.Percent, mem v1alpha1.MiB) v1alpha1.Share {
	return v1alpha1.Share{GPUs: 1, Core: core, MemMiB: mem}
}

// requestOf is the share as the user wrote it: totals of the container.
func requestOf(s v1alpha1.Share) corev1.ResourceRequirements {
	limits := corev1.ResourceList{}
	for name, amount := range map[corev1.ResourceName]int64{
		v1alpha1.ResourceCore: int64(s.Core), v1alpha1.ResourceMemPercent: int64(s.MemPercent), v1alpha1.ResourceMemMiB: int64(s.MemMiB)} {
		if amount > 0 {
			limits[name] = *resource.NewQuantity(amount*int64(s.GPUs), resource.DecimalSI)
		}
	}
	return corev1.ResourceRequirements{Limits: limits, Requests: limits}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) ledger(name string) *v1alpha1.SliceLedger {
	l := &v1alpha1.SliceLedger{}
	w.must(w.api.Get(context.Background(), client.ObjectKey{Name: name}, l))
	return l
}

func (w *world) pods() []corev1.Pod {
	list := &corev1.PodList{}
	w.must(w.api.List(context.Background(), list))
	return list.Items
}

// somePod is a random pod that ok takes, nil when there is none.
func (w *world) somePod(ok func(*corev1.Pod) bool) *corev1.Pod {
	pods := w.pods()
	for _, i := range w.rand.Perm(len(pods)) {
		if ok(&pods[i]) {
			return &pods[i]
		}
	}
	return nil
}

// createPod is a user with a random request.
func (w *world) createPod() {
	w.made++
	shares := map[string]v1alpha1.Share{}
	for _, c := range []string{"a", "b"}[:1+w.rand.Intn(2)] {
		shares[c] = v1alpha1.Share{
			GPUs: v1alpha1.DeviceCount(1 + w.rand.Intn(2)), Core: v1alpha1.Percent(w.rand.Intn(41)),
			MemMiB: v1alpha1.MiB(1 + w.rand.Intn(deviceMiB*4/10)),
		}
	}
	p := testPod(fmt.Sprintf("p%d", w.made), shares)
	p.UID = types.UID(p.Name)
	p.Annotations[v1alpha1.AnnotationPolicy] = string([]v1alpha1.Policy{v1alpha1.PolicyPack, v1alpha1.PolicySpread}[w.rand.Intn(2)])
	w.must(w.api.Create(context.Background(), p))
	w.notify(p, false)
}

// deletePod is a user who deletes any pod, gated or running.
func (w *world) deletePod() {
	running := w.rand.Intn(2) == 0
	if p := w.somePod(func(p *corev1.Pod) bool { return w.calm || running == (p.Spec.NodeName != "") }); p != nil {
		w.must(w.api.Delete(context.Background(), p))
		w.notify(p, true)
	}
}

// bind is the stock scheduler: it binds an ungated pod to its pin.
func (w *world) bind() {
	p := w.somePod(func(p *corev1.Pod) bool { return len(p.Spec.SchedulingGates) == 0 && p.Spec.NodeName == "" })
	if p == nil {
		return
	}
	fields := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields
	p.Spec.NodeName = fields[0].Values[0]
	w.must(w.api.Update(context.Background(), p))
	w.notify(p, false)
}

// start is a node agent that starts a bound pod, if the ledger holds its slices.
func (w *world) start() {
	p := w.somePod(func(p *corev1.Pod) bool { return p.Spec.NodeName != "" && w.running[p.Spec.NodeName][p.UID] == nil })
	if p == nil {
		return
	}
	var held []runningSlice
	for _, d := range w.ledger(p.Spec.NodeName).Spec.Devices {
		for _, s := range d.Slices {
			if s.Pod == p.UID {
				held = append(held, runningSlice{d.UUID, s})
			}
		}
	}
	if held == nil {
		w.t.Fatalf("pod %s was let go to %s, whose ledger has no slices for it", p.Name, p.Spec.NodeName)
	}
	w.running[p.Spec.NodeName][p.UID] = held
}

// stop is a runtime that ends the containers of a pod that is gone.
func (w *world) stop() {
	node := w.nodes[w.rand.Intn(len(w.nodes))]
	for uid := range w.running[node] {
		if !w.exists(uid) {
			delete(w.running[node], uid)
			return
		}
	}
}

func (w *world) exists(uid types.UID) bool {
	return w.somePod(func(p *corev1.Pod) bool { return p.UID == uid }) != nil
}

// report is a node agent that publishes which pods are gone for good.
func (w *world) report(node string) {
	l := w.ledger(node)
	var released []types.UID
	for uid := range book.Pods(l) {
		if !w.exists(uid) && w.running[node][uid] == nil {
			released = append(released, uid)
		}
	}
	if fmt.Sprint(released) == fmt.Sprint(l.Status.Released) {
		return
	}
	l.Status.Released = released
	w.must(w.api.Status().Update(context.Background(), l))
	w.notify(l, false)
}

// check asserts Invariant 1, in the ledgers and in the containers that run.
func (w *world) check() {
	w.t.Helper()
	for _, node := range w.nodes {
		for _, d := range w.ledger(node).Spec.Devices {
			w.checkSum(node, d.UUID, "ledger", d.Slices)
		}
		running := map[string][]v1alpha1.Slice{}
		for _, held := range w.running[node] {
			for _, h := range held {
				running[h.uuid] = append(running[h.uuid], h.slice)
			}
		}
		for uuid, slices := range running {
			w.checkSum(node, uuid, "containers", slices)
		}
	}
}

func (w *world) checkSum(node, uuid, where string, slices []v1alpha1.Slice) {
	w.t.Helper()
	var core v1alpha1.Percent
	var mem v1alpha1.MiB
	once := map[string]bool{}
	for _, s := range slices {
		core, mem = core+s.Core-s.ReuseCore, mem+s.Mem-s.ReuseMem
		if once[string(s.Pod)+s.Ctr] {
			w.t.Fatalf("Invariant 1: %s, %s of %s: pod %s has two slices of one device for one container", where, uuid, node, s.Pod)
		}
		once[string(s.Pod)+s.Ctr] = true
	}
	if core > v1alpha1.WholeGPU || mem > deviceMiB {
		w.t.Fatalf("Invariant 1: %s: %s of %s has %d core and %d MiB granted: %+v", where, uuid, node, core, mem, slices)
	}
}
