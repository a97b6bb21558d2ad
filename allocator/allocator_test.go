// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/binding/bindwatch"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// stage is a world in which nothing happens by chance, with one replica whose
// clock and events the test holds.
type stage struct {
	*world
	*replicaInTest
	events *record.FakeRecorder
	// heard are the API server's events that told has returned.
	heard map[string]bool
}

func newStage(t *testing.T, nodes int) *stage {
	t.Helper()
	w := newWorld(t, 1, nodes, 1)
	w.calm = true
	s := &stage{world: w, replicaInTest: w.replicas[0], events: record.NewFakeRecorder(1000)}
	s.allocator.notify.Events = s.events
	return s
}

// add creates a pod that asks for one device.
func (s *stage) add(name string, core v1alpha1.Percent, mem v1alpha1.MiB, edits ...func(*corev1.Pod)) *corev1.Pod {
	s.t.Helper()
	p := objects.Pod(name, map[string]v1alpha1.Share{"c": {GPUs: 1, Core: core, MemMiB: mem}})
	p.UID = types.UID(name)
	for _, e := range edits {
		e(p)
	}
	s.must(s.api.Create(s.t.Context(), p))
	s.notify(p, false)
	return p
}

// work has everything seen and done that is due.
func (s *stage) work() {
	for len(s.watch) > 0 || s.queue.Len() > 0 {
		s.read()
		s.step()
	}
}

// told are the events since the last call.
func (s *stage) told() []string {
	var events []string
	for len(s.events.Events) > 0 {
		events = append(events, <-s.events.Events)
	}
	written := &corev1.EventList{}
	s.must(s.api.List(s.t.Context(), written))
	if s.heard == nil {
		s.heard = map[string]bool{}
	}
	for _, e := range written.Items {
		if !s.heard[e.Name] {
			s.heard[e.Name] = true
			events = append(events, fmt.Sprintf("%s %s %s", e.Type, e.Reason, e.Message))
		}
	}
	return events
}

func (s *stage) get(name string) *corev1.Pod {
	s.t.Helper()
	return s.somePod(func(p *corev1.Pod) bool { return p.Name == name })
}

func (s *stage) grantBy(node string, pod *corev1.Pod, device int) {
	s.t.Helper()
	l := s.ledger(node)
	s.must(grants.Grant(l, pod.UID, podstate.KeyOf(pod).String(), placement.Plan{Node: node, Grants: []placement.Grant{{
		Container: "c", UUID: fmt.Sprintf("GPU-%s-%d", node, device), Core: 10, Mem: 100, Mode: v1alpha1.ModeLimiter}}}))
	s.must(s.api.Update(s.t.Context(), l))
	s.notify(l, false)
}

// Invariant 6: what a deposed leader grants to a pod that is placed elsewhere
// meanwhile is taken back.
func TestLateGrantIsTakenBack(t *testing.T) {
	s := newStage(t, 2)
	p := s.add("p", 10, 100)
	s.work()
	if podstate.TargetNode(s.get("p")) != "n0" {
		t.Fatalf("placed on %q, want n0", podstate.TargetNode(s.get("p")))
	}
	s.grantBy("n1", p, 0)
	s.work()
	if held := s.allocator.cache.Index.Holders(p.UID); !slices.Equal(held, []string{"n0"}) {
		t.Errorf("held on %v, want n0", held)
	}
}

// A ledger that grants something else than the pod asks for was edited by hand:
// the pod is decided anew.
func TestForeignGrantIsNotAdopted(t *testing.T) {
	s := newStage(t, 1)
	p := objects.Pod("p", map[string]v1alpha1.Share{"a": {GPUs: 1, Core: 10, MemMiB: 10}, "b": {GPUs: 1, Core: 10, MemMiB: 10}})
	p.UID = "p"
	s.must(s.api.Create(t.Context(), p))
	s.grantBy("n0", p, 1)
	s.notify(p, false)
	s.work()
	doc, err := v1alpha1.ParsePlacement(s.get("p").Annotations[v1alpha1.AnnotationPlacement])
	s.must(err)
	if got := fmt.Sprint(slices.Sorted(maps.Keys(doc.Containers))); got != "[a b]" {
		t.Errorf("placed %s", got)
	}
	if n := len(s.ledger("n0").Spec.Devices[0].Slices); n != 0 {
		t.Errorf("%d foreign slices are left", n)
	}
}

// A gated pod whose granted amounts were edited is decided anew: let go as it is,
// its node would refuse it for ever.
func TestEditedGrantIsNotAdopted(t *testing.T) {
	for _, asks := range []v1alpha1.Share{
		{GPUs: 1, Core: 10, MemMiB: 100}, {GPUs: 1, Core: 10, MemPercent: 10}, {GPUs: 1, Core: 11, MemMiB: 100}, {GPUs: 1, Core: 10, MemMiB: 101}, {GPUs: 1, Core: 10, MemPercent: 11},
	} {
		s := newStage(t, 1)
		p := objects.Pod("p", map[string]v1alpha1.Share{"c": asks})
		p.UID = "p"
		s.must(s.api.Create(t.Context(), p))
		s.grantBy("n0", p, 1) // 10 core and 100 MiB
		s.notify(p, false)
		s.work()
		want, _ := asks.Memory(objects.DeviceMiB)
		doc, err := v1alpha1.ParsePlacement(s.get("p").Annotations[v1alpha1.AnnotationPlacement])
		s.must(err)
		if got := doc.Containers["c"].Devices; len(got) != 1 || got[0].Core != asks.Core || got[0].MemMiB != want {
			t.Errorf("asks for %+v, let go with %+v", asks, got)
		}
		if adopted := doc.Containers["c"].Devices[0].UUID == "GPU-n0-1"; adopted != (asks.Core == 10 && want == 100) {
			t.Errorf("%+v: adopted %v", asks, adopted)
		}
	}
}

// Invariant 6: a leader whose watch is behind does not take back what another has
// granted to a pod and let go with, although the scheduler is against the node now.
func TestLateLeaderTakesNothingBack(t *testing.T) {
	s := newStage(t, 1)
	p := s.add("p", 10, 100)
	for len(s.watch) > 0 {
		s.read()
	}
	s.grantBy("n0", p, 0)
	s.read() // the grant is seen, what follows is not
	p.Spec.SchedulingGates, p.Spec.NodeName = nil, "n0"
	s.must(s.api.Update(t.Context(), p))
	s.notify(p, false)
	cordoned := objects.Node("n0")
	cordoned.Spec.Unschedulable = true
	s.allocator.SetNode(objects.Node("n0"), cordoned)
	for s.step() {
	}
	if len(s.devicesOf("n0", "p")) == 0 {
		t.Error("Invariant 6: the slices of a pod that was let go were taken back")
	}
}

// Invariant 1: a ledger that lost what it granted, by hand or by deletion, grants
// nothing else before it has it back.
func TestLostGrantsComeBack(t *testing.T) {
	s := newStage(t, 1)
	p := objects.Pod("p", map[string]v1alpha1.Share{"load": {GPUs: 1, Core: 100, MemMiB: 700}, "train": {GPUs: 2, Core: 60, MemMiB: 600}})
	p.UID = "p"
	p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[:1], p.Spec.Containers[1:]
	s.must(s.api.Create(t.Context(), p))
	s.notify(p, false)
	s.work()
	s.bind()
	n := s.node("n0")
	n.watch()
	n.start(always)
	s.work()
	before := fmt.Sprint(s.ledger("n0").Spec)
	l := s.ledger("n0")
	l.Spec = v1alpha1.SliceLedgerSpec{}
	s.must(s.api.Update(t.Context(), l))
	s.notify(l, false)
	s.read()
	// The pod that comes at this moment must not get what is in use.
	s.add("q", 70, 700)
	s.read()
	s.queue.due = []queue.Item{{Pod: types.NamespacedName{Namespace: "ns", Name: "q"}}}
	s.step()
	if !podstate.Gated(s.get("q")) {
		t.Fatal("Invariant 1: granted what runs already")
	}
	s.allocator.begin(s.queue)
	s.work()
	if after := fmt.Sprint(s.ledger("n0").Spec); after != before {
		t.Errorf("before %s\nafter  %s", before, after)
	}
	s.vanish(s.get("p"))
	n.stop()
	n.watch()
	n.report()
	s.work()
	if podstate.Gated(s.get("q")) {
		t.Error("q still waits")
	}
}

// Of many nodes that lack CPU a hundred are asked for the scheduler's words, whatever the
// first of them lacks, and the others are counted; one that doesn't lack any is asked.
func TestWordsOfFullNodes(t *testing.T) {
	const nodes = scheduling.MaxWords + 20
	s := newStage(t, nodes)
	for i := range nodes {
		old := objects.Node(fmt.Sprint("n", i))
		now := old.DeepCopy()
		if i == nodes-1 {
			now.Spec.Unschedulable = true
		} else {
			now.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("1")
		}
		s.allocator.SetNode(old, now)
	}
	judged := measured(t, "vernier_allocator_nodes_judged")
	s.add("p", 50, 100, cpu("2"))
	s.work()
	want := fmt.Sprintf("%d node(s) have the devices, but the scheduler would refuse them: %d Insufficient cpu, 1 node(s) were unschedulable, and %d more that lack CPU or memory",
		nodes, scheduling.MaxWords, nodes-1-scheduling.MaxWords)
	if got := s.told(); len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := measured(t, "vernier_allocator_nodes_judged") - judged; got != scheduling.MaxWords+1 {
		t.Errorf("%v nodes were judged, want %d", got, scheduling.MaxWords+1)
	}
}

// judgedInFiveLooks is how many nodes the filters are asked about while all that waits is looked
// at five times.
func (s *stage) judgedInFiveLooks() float64 {
	s.t.Helper()
	before := measured(s.t, "vernier_allocator_nodes_judged")
	for range 5 {
		s.allocator.queue.MoveToActive(cache.OnAll)
		s.work()
	}
	return measured(s.t, "vernier_allocator_nodes_judged") - before
}

// Why a pod waits is found out once a minute, however often it is looked at and for however
// long its reason stays.
func TestReasonsAreFoundOnceAMinute(t *testing.T) {
	s := newStage(t, 1)
	s.add("p", 50, 100, cpu("100"))
	s.work()
	if got := s.judgedInFiveLooks(); got != 0 {
		t.Errorf("asked %v times right after it was found out", got)
	}
	for range 3 {
		s.clock.Step(notify.RepeatAfter)
		if got := s.judgedInFiveLooks(); got != 1 {
			t.Errorf("asked %v times in five looks after a minute", got)
		}
	}
}

// Another reason of the same kind is told within a minute, though nothing happens any more
// by then. One that comes back again and again is told seldom, and is not found out any
// more often for it.
func TestAnotherReasonOfTheSameKind(t *testing.T) {
	s := newStage(t, 1)
	s.add("p", 50, 100, cpu("100"))
	s.work()
	s.told()
	cordoned := objects.Node("n0")
	cordoned.Spec.Unschedulable = true
	set := func(old, now *corev1.Node) {
		s.allocator.SetNode(old, now)
		s.pass(queue.RefusedDelay)
	}
	cpu, unschedulable := "1 Insufficient cpu", "1 node(s) were unschedulable"
	is := objects.Node("n0")
	for i, want := range []string{unschedulable, cpu, unschedulable, cpu, unschedulable} {
		now := objects.Node("n0")
		if i%2 == 0 {
			now = cordoned
		}
		set(is, now)
		is = now
		s.pass(notify.RepeatAfter - queue.RefusedDelay)
		if got := strings.Join(s.told(), "; "); !strings.Contains(got, want) {
			t.Fatalf("%d. told %q, want %q", i, got, want)
		}
	}
	s.pass(notify.RepeatAfter / 2)
	set(is, objects.Node("n0"))
	s.pass(notify.RepeatAfter - queue.RefusedDelay)
	if got, told := s.judgedInFiveLooks(), s.told(); got != 0 || len(told) > 0 {
		t.Errorf("asked %v times right after it was found out; told %q", got, told)
	}
	// It was told four minutes ago then, for the third time.
	s.pass(notify.RepeatAfter)
	s.pass(notify.RepeatAfter / 2)
	if got := strings.Join(s.told(), "; "); !strings.Contains(got, cpu) {
		t.Errorf("told %q when it is time, want %q", got, cpu)
	}
}

// One event for a reason, not one for a retry; new figures after a minute.
func TestEventsTellChanges(t *testing.T) {
	s := newStage(t, 1)
	s.add("full", 90, 900)
	s.add("full2", 90, 900)
	s.work()
	s.told()
	s.add("p", 50, 100)
	s.work()
	if got := s.told(); len(got) != 1 || !strings.Contains(got[0], "needs 50 % compute and 100 MiB on one GPU; nearest: n0 GPU 0 has 10 % and 100 MiB free") {
		t.Fatalf("%q", got)
	}
	retry := func() []string {
		s.allocator.queue.MoveToActive(cache.OnAll)
		s.work()
		return s.told()
	}
	if got := retry(); len(got) != 0 {
		t.Errorf("told again: %q", got)
	}
	s.add("small", 5, 50)
	s.work()
	s.told()
	if got := retry(); len(got) != 0 {
		t.Errorf("new figures at once: %q", got)
	}
	s.clock.Step(notify.RepeatAfter)
	if got := retry(); len(got) != 1 || !strings.Contains(got[0], "nearest: n0 GPU 1 has 10 % and 100 MiB free") {
		t.Errorf("after a minute: %q", got)
	}
	node := &corev1.Node{}
	*node = *objects.Node("n0")
	node.Spec.Unschedulable = true
	s.allocator.SetNode(objects.Node("n0"), node)
	full := s.get("full")
	s.must(s.api.Delete(t.Context(), full))
	s.notify(full, true)
	s.work()
	if got := s.told(); len(got) != 1 || !strings.Contains(got[0], "1 node(s) have the devices, but the scheduler would refuse them: 1 node(s) were unschedulable") {
		t.Errorf("another reason: %q", got)
	}
	s.allocator.SetNode(node, objects.Node("n0"))
	s.pass(queue.RefusedDelay)
	if podstate.Gated(s.get("p")) {
		t.Error("not placed after the node was uncordoned")
	}
}

// unschedulable is the scheduler refusing a pod.
func (s *stage) unschedulable(name string) {
	p := s.get(name)
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	s.must(s.api.Status().Update(s.t.Context(), p))
	s.notify(p, false)
	s.work()
}

// A pod that the scheduler refuses on its node is given up after a while: with a
// controller it is deleted, and its slices are free again.
func TestRefusedAfterThePin(t *testing.T) {
	s := newStage(t, 1)
	counted := measured(t, "vernier_allocator_pin_refusals_total")
	s.add("alone", 10, 100)
	s.add("controlled", 10, 100, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r", Controller: ptr.To(true)}}
	})
	s.work()
	s.unschedulable("alone")
	s.unschedulable("controlled")
	s.told()
	s.pass(bindwatch.RefusedGrace - time.Second)
	if got := s.told(); len(got) != 0 || s.get("controlled") == nil {
		t.Fatalf("given up before the time: %q", got)
	}
	s.pass(time.Second)
	if got := s.told(); len(got) != 2 || !strings.Contains(got[0], "free what it lacks") || !strings.Contains(got[1], "controller creates it again") {
		t.Errorf("%q", got)
	}
	if n := measured(t, "vernier_allocator_pin_refusals_total") - counted; n != 2 {
		t.Errorf("%v pins that turned bad were counted, want 2", n)
	}
	if s.get("controlled") != nil || s.get("alone") == nil {
		t.Errorf("left: %v", s.live)
	}
	if got := grants.Pods(s.ledger("n0")); len(got) != 1 || got["alone"] == "" {
		t.Errorf("slices of %v", got)
	}
	// Told once; and a pod that is bound in the end is no longer counted.
	s.unschedulable("alone")
	s.bind()
	s.work()
	if got := s.told(); len(got) != 0 || kept(s.allocator.bindwatch, "refusals") != 0 {
		t.Errorf("%q, or a refusal is kept", got)
	}
}

// Pods that were placed count on their node before they are bound.
func TestPlacedPodsCount(t *testing.T) {
	s := newStage(t, 1)
	s.add("first", 1, 1, cpu("40"))
	s.add("second", 1, 1, cpu("40"))
	s.work()
	if podstate.Gated(s.get("first")) || !podstate.Gated(s.get("second")) {
		t.Errorf("Invariant 7: 80 CPUs on a node of 64")
	}
	first := s.get("first")
	s.must(s.api.Delete(t.Context(), first))
	s.notify(first, true)
	s.work()
	s.pass(queue.RefusedDelay)
	if podstate.Gated(s.get("second")) {
		t.Error("not woken by the deletion of the first")
	}
}

func TestTakeOverWithinFiveSeconds(t *testing.T) {
	// The retry of client-go's leader election is drawn out by up to 1.2 × itself.
	if worst := leaseDuration + 2*retryPeriod*22/10; worst > 5*time.Second {
		t.Errorf("a standby may take %v", worst)
	}
}
