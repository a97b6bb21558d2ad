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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	t    *testing.T
	rand *rand.Rand
	// fail ends the test: an invariant does not hold.
	fail func(format string, args ...any)
	cluster
	settings
	habits
	faults
	history
}

// cluster is what there is.
type cluster struct {
	api client.WithWatch
	// real is an API server that keeps all rules, not one in memory.
	real  bool
	clock *testclock.FakeClock
	// live and ledgers are what the API server has, destroyed the last versions of the ledgers that
	// were deleted.
	live      []*corev1.Pod
	ledgers   map[string]*v1alpha1.SliceLedger
	destroyed map[string]string
	nodes     []*nodeInTest
	replicas  []*replicaInTest
	// budgets are the PodDisruptionBudgets, with how many evictions each allows.
	budgets []*policyv1.PodDisruptionBudget
	// objects are what else the API server has, as replicas see it that start from now on:
	// namespaces, volumes, claims.
	objects []runtime.Object
	// made counts the pods, changes what the API server has stored.
	made, changes int
	// stored, if set, is called with each change.
	stored func(obj client.Object, deleted bool)
}

// settings are the replicas'.
type settings struct {
	// events are those that replicas send, nil if nobody reads them.
	events *record.FakeRecorder
	// sizes are what the PodGroups say; nil for none.
	sizes *podgroup.Sizes
	// classes, if set, are those that some containers ask for units of; devices are of two models.
	classes *classes.Set
	// priorityClasses count against other namespaces: all of them, where a test does not say.
	priorityClasses []string
	reserveAfter    time.Duration
	defragment      preemption.Defragment
	preemption      preemption.Policy
}

// habits are what users do.
type habits struct {
	// gangsOnly is a cluster in which every pod belongs to a gang and takes half of a
	// device or more, priorities one with pods of several priorities, hostiles one with hostile pods.
	gangsOnly, priorities, hostiles bool
	// idle is one in which many pods have idle slices, others are burstable, and nodes are over-committed.
	idle bool
}

// faults are what goes wrong, beside what chance has go wrong until the world is calm.
type faults struct {
	calm bool
	// kill, if set, is asked at every request whether the replica dies before the API
	// server has it, or after.
	kill func() (before, after bool)
	// lastWriteWins is an API server that does not compare before it swaps.
	lastWriteWins bool
	// hasty are nodes that release the slices of a pod that is being deleted.
	hasty bool
	// blind are leaders that do not see what another took back of what gated pods had.
	blind bool
}

// history is what has happened, for what must hold then.
type history struct {
	// disturbed are pods that may have lost their slices, or run elsewhere than they
	// are booked, until that is healed.
	disturbed map[types.UID]bool
	// wasBound is where a pod was or is bound, endedAt when it ended.
	wasBound map[types.UID]string
	endedAt  map[types.UID]time.Time
	gangs    map[podrequest.Group]*gangInTest
	// decided is the change up to which a replica had read all of pods when it gave one
	// its slices.
	decided map[types.UID]int
	// formed and held count how often all of a gang was ungated, and a ledger was
	// written that holds something. honest counts the honest pods that were placed in time.
	formed, held, honest int
	// reserved are those for which room was kept since they waited for long.
	reserved map[queue.Item]bool
	// evicted are the pods that were, in order, wasOn the device, or one of those, that each had.
	// moved is how often replicas asked for that to move a pod.
	evicted []types.UID
	moved   int
	// overcommitted counts the slices that were granted less than their containers ask for.
	overcommitted int
	// reclaimed counts the pods whose idle slices were taken back.
	reclaimed int
	wasOn     map[types.UID]string
	// placedOf counts the devices that containers of each class were granted.
	placedOf map[string]int
}

// newWorld has an API server in memory. The edits come before its replicas start.
func newWorld(t *testing.T, seed int64, nodes, replicas int, edits ...func(*world)) *world {
	t.Helper()
	clock := testclock.NewFakeClock(time.Unix(0, 0))
	api := objects.TrackedServer(t, func(tracker clienttesting.ObjectTracker) clienttesting.ObjectTracker {
		return clockedTracker{tracker, clock.Now}
	})
	return newWorldOn(t, api, clock, seed, nodes, replicas, false, edits...)
}

// newWorldOn has its cluster on some API server, a real one or not.
func newWorldOn(t *testing.T, api client.WithWatch, clock *testclock.FakeClock, seed int64, nodes, replicas int, real bool, edits ...func(*world)) *world {
	t.Helper()
	w := &world{t: t, rand: rand.New(rand.NewSource(seed)), fail: t.Fatalf,
		cluster:  cluster{api: api, real: real, clock: clock, ledgers: map[string]*v1alpha1.SliceLedger{}, destroyed: map[string]string{}},
		settings: settings{priorityClasses: []string{"*"}},
		history: history{disturbed: map[types.UID]bool{}, wasBound: map[types.UID]string{}, endedAt: map[types.UID]time.Time{}, wasOn: map[types.UID]string{},
			reserved: map[queue.Item]bool{}, gangs: map[podrequest.Group]*gangInTest{}, decided: map[types.UID]int{}}}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		w.createNode(name)
		l := objects.Ledger(name)
		w.must(w.api.Create(t.Context(), l))
		w.must(w.api.Status().Update(t.Context(), objects.WithStatus(l)))
		w.notify(l, false)
		w.nodes = append(w.nodes, newNode(w, name))
	}
	for _, edit := range edits {
		edit(w)
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

// create, put and putStatus are somebody who writes an object, which the watches then show.
func (w *world) create(obj client.Object) {
	w.t.Helper()
	w.must(w.api.Create(context.Background(), obj))
	w.notify(obj, false)
}

func (w *world) put(obj client.Object) {
	w.t.Helper()
	w.must(w.api.Update(context.Background(), obj))
	w.notify(obj, false)
}

func (w *world) putStatus(obj client.Object) {
	w.t.Helper()
	w.must(w.api.Status().Update(context.Background(), obj))
	w.notify(obj, false)
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
		w.putStatus(p)
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
	w.put(l)
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
