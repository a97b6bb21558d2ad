// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// world is a cluster in memory: an API server with real compare-and-swap, a stock
// scheduler, node agents, users and some allocators. Everything happens on one
// goroutine, in an order that a seed decides: it replays.
type world struct {
	// sizes are what the PodGroups say; nil for none.
	sizes *podgroup.Sizes
	t     *testing.T
	rand  *rand.Rand
	api   client.WithWatch
	// live and ledgers are what the API server has.
	live     []*corev1.Pod
	ledgers  map[string]*v1alpha1.SliceLedger
	replicas []*replicaInTest
	made     int
	nodes    []*nodeInTest
	clock    *testclock.FakeClock
	// disturbed are pods that may have lost their slices, or run elsewhere than they
	// are booked, until that is healed.
	disturbed map[types.UID]bool
	// wasBound is where a pod was or is bound.
	wasBound map[types.UID]string
	// endedAt is when a pod ended.
	endedAt map[types.UID]time.Time
	// destroyed are the last versions of the ledgers that were deleted.
	destroyed map[string]string
	gangs     map[podrequest.Group]*gangInTest
	// decided is the change up to which a replica had read all of pods when it gave one
	// its slices.
	decided map[types.UID]int
	// formed and held count how often all of a gang was let go, and a ledger was
	// written that holds something.
	formed, held int
	// changes counts what the API server has stored.
	changes int
	// stored, if set, is told of each.
	stored func(obj client.Object, deleted bool)
	// kill, if set, is asked at every request whether the replica dies before the API
	// server has it, or after.
	kill func() (before, after bool)
	// gangsOnly is a cluster in which every pod belongs to a gang and takes half of a
	// device or more.
	gangsOnly bool
	// priorities is a cluster with pods of several priorities. reserved are those for which room was
	// kept since they waited for long.
	priorities bool
	// priorityClasses count against other namespaces: all of them, where a test does not say.
	priorityClasses []string
	reserved        map[queue.Item]bool
	// reserveAfter is that of the replicas.
	reserveAfter time.Duration
	// preemption is that of the replicas.
	preemption preemption.Policy
	// budgets are the PodDisruptionBudgets, with how many evictions each allows.
	budgets []*policyv1.PodDisruptionBudget
	// evicted are the pods that were, in order.
	evicted []types.UID
	// wasOn is the device, or one of those, that an evicted pod had slices of.
	wasOn map[types.UID]string
	// objects are what else the API server has, as replicas see it that start from now on:
	// namespaces, volumes, claims.
	objects []runtime.Object
	// hostiles is a cluster with hostile pods. honest counts those that were placed in time
	// beside them.
	hostiles bool
	honest   int
	// classes, if set, are those that some containers ask for units of; devices are of two models.
	classes *classes.Set
	// placedOf counts the devices that containers of each class were granted.
	placedOf map[string]int
	// real is an API server that keeps all rules, not one in memory.
	real bool
	// calm is true once no more faults are wanted.
	calm bool
	// lastWriteWins is an API server that does not compare before it swaps.
	lastWriteWins bool
	// hasty are nodes that release the slices of a pod that is being deleted.
	hasty bool
	// blind are leaders that do not see what another took back of what gated pods had.
	blind bool
	// fail ends the test: an invariant does not hold.
	fail func(format string, args ...any)
}

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

// fakeServer is an API server in memory.
func fakeServer(t *testing.T, now func() time.Time) client.WithWatch {
	t.Helper()
	scheme := testScheme(t)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Event"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(v1alpha1.SchemeGroupVersion.WithKind("SliceLedger"), meta.RESTScopeRoot)
	// The usual tracker keeps managedFields too, which nobody looks at here, and
	// takes half of the time of a soak for it.
	tracker := clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	return fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjectTracker(clockedTracker{tracker, now}).
		WithStatusSubresource(&v1alpha1.SliceLedger{}, &corev1.Pod{}).Build()
}

func newWorld(t *testing.T, seed int64, nodes, replicas int) *world {
	t.Helper()
	clock := testclock.NewFakeClock(time.Unix(0, 0))
	return newWorldOn(t, fakeServer(t, clock.Now), clock, seed, nodes, replicas, false)
}

// newWorldOn has its cluster on some API server, a real one or not.
func newWorldOn(t *testing.T, api client.WithWatch, clock *testclock.FakeClock, seed int64, nodes, replicas int, real bool) *world {
	t.Helper()
	w := &world{t: t, api: api, real: real, rand: rand.New(rand.NewSource(seed)), clock: clock,
		ledgers: map[string]*v1alpha1.SliceLedger{}, disturbed: map[types.UID]bool{}, wasBound: map[types.UID]string{}, destroyed: map[string]string{}, endedAt: map[types.UID]time.Time{}, wasOn: map[types.UID]string{},
		reserved: map[queue.Item]bool{}, gangs: map[podrequest.Group]*gangInTest{}, decided: map[types.UID]int{}, fail: t.Fatalf, priorityClasses: []string{"*"}}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		w.createNode(name)
		l := objects.Ledger(name)
		w.must(w.api.Create(t.Context(), l))
		w.must(w.api.Status().Update(t.Context(), objects.WithStatus(l)))
		w.notify(l, false)
		w.nodes = append(w.nodes, newNode(w, name))
	}
	for i := range replicas {
		w.replicas = append(w.replicas, &replicaInTest{world: w, name: fmt.Sprintf("replica-%d", i)})
		w.replicas[i].restart()
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) node(name string) *nodeInTest {
	return w.nodes[slices.IndexFunc(w.nodes, func(n *nodeInTest) bool { return n.name == name })]
}

func (w *world) anyNode() *nodeInTest { return w.nodes[w.rand.Intn(len(w.nodes))] }

// notify takes in what the API server has now, and sends it to every replica's
// watch.
func (w *world) notify(obj client.Object, deleted bool) {
	w.changes++
	obj = obj.DeepCopyObject().(client.Object)
	if w.stored != nil {
		w.stored(obj, deleted)
	}
	same := func(o client.Object) bool { return o.GetName() == obj.GetName() }
	switch obj := obj.(type) {
	case *corev1.Pod:
		before := w.counting(obj)
		w.ends(obj)
		w.live = slices.DeleteFunc(w.live, func(p *corev1.Pod) bool { return same(p) })
		if !deleted {
			w.live = append(w.live, obj)
		}
		if obj.Spec.NodeName != "" {
			w.wasBound[obj.UID] = obj.Spec.NodeName
		}
		w.follow(before, obj)
	case *v1alpha1.SliceLedger:
		w.ledgers[obj.Name] = obj
		if slices.ContainsFunc(obj.Spec.Holds, func(h v1alpha1.Hold) bool { return !isLate(h.Owner) }) {
			w.held++
		}
		if deleted {
			delete(w.ledgers, obj.Name)
		}
	}
	for _, r := range w.replicas {
		r.watch = append(r.watch, change{obj, deleted, w.changes})
	}
}

// createNode adds a Node object.
func (w *world) createNode(name string) {
	node := objects.Node(name)
	advertiseUnits(node)
	status := node.Status
	w.must(w.api.Create(context.Background(), node))
	if w.real {
		node.Spec.Taints = nil // admission adds "not ready"
		w.must(w.api.Update(context.Background(), node))
		node.Status, node.Status.Capacity = status, status.Allocatable
		w.must(w.api.Status().Update(context.Background(), node))
	}
	w.notify(node, false)
}

// ledger is a copy of a node's ledger as it is now, one without a version when
// there is none.
func (w *world) ledger(name string) *v1alpha1.SliceLedger {
	if l := w.ledgers[name]; l != nil {
		return l.DeepCopy()
	}
	return objects.Ledger(name)
}

// somePod is a copy of a random pod that ok takes, nil when there is none. ok must
// not change it.
func (w *world) somePod(ok func(*corev1.Pod) bool) *corev1.Pod {
	for _, i := range w.rand.Perm(len(w.live)) {
		if ok(w.live[i]) {
			return w.live[i].DeepCopy()
		}
	}
	return nil
}

// setStatus writes a pod's status, if it says something new.
func (w *world) setStatus(p *corev1.Pod) {
	if known := w.find(p.UID); known != nil && !equality.Semantic.DeepEqual(known.Status, p.Status) {
		w.must(w.api.Status().Update(context.Background(), p))
		w.notify(p, false)
	}
}

// find is a copy of a pod, nil when it is gone.
func (w *world) find(uid types.UID) *corev1.Pod {
	for _, p := range w.live {
		if p.UID == uid {
			return p.DeepCopy()
		}
	}
	return nil
}

// over tells whether the pod is finished or gone.
func (w *world) over(uid types.UID) bool {
	p := w.find(uid)
	return p == nil || podstate.Terminal(p)
}

// disturb notes that the pods with slices on a node may lose them now.
func (w *world) disturb(l *v1alpha1.SliceLedger) {
	for uid := range grants.Pods(l) {
		w.disturbed[uid] = true
	}
	w.rob(l, &v1alpha1.SliceLedger{}, true)
}

// lose empties a ledger's spec, as somebody who edits it by hand.
func (w *world) lose(node string) {
	l := w.ledger(node)
	if l.ResourceVersion == "" {
		return
	}
	w.disturb(l)
	l.Spec = v1alpha1.SliceLedgerSpec{}
	w.must(w.api.Update(context.Background(), l))
	w.notify(l, false)
}

// destroy deletes a ledger; its node makes a new one.
func (w *world) destroy(node string) {
	l := w.ledger(node)
	if l.ResourceVersion == "" {
		return
	}
	w.disturb(l)
	w.must(w.api.Delete(context.Background(), l))
	w.destroyed[node] = l.ResourceVersion
	w.notify(l, true)
}

// recreate makes a ledger for a node that has none.
func (w *world) recreate(node string) {
	l := objects.Ledger(node)
	l.UID = types.UID(fmt.Sprintf("ledger-%s-%d", node, w.rand.Int()))
	w.must(w.api.Create(context.Background(), l))
	// Versions of an API server go on across objects; those of this one do not.
	for c := -1; c <= 0; {
		w.must(w.api.Update(context.Background(), l))
		var err error
		c, err = resourceversion.CompareResourceVersion(l.ResourceVersion, w.destroyed[node])
		w.must(err)
	}
	w.notify(l, false)
}
