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
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/binding/bindwatch"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// Invariant 6: what a deposed leader grants to a pod that is placed elsewhere
// meanwhile is taken back.
func TestGrant_WhenPodIsPlacedElsewhere_IsReleased(t *testing.T) {
	s := newStage(t, 2)
	p := s.add("p", 10, 100)
	s.work()
	s.expect("p:n0")
	s.grant("n1", p.UID, 0, 10, 100)
	s.work()
	s.booked("p", "GPU-n0-0")
}

// A ledger that grants something else than the pod asks for was edited by hand:
// the pod is decided anew.
func TestGrant_WhenContainersDiffer_IsDecidedAgain(t *testing.T) {
	s := newStage(t, 1)
	s.pair("p", objects.Share(10, 10), objects.Share(10, 10))
	s.grant("n0", "p", 1, 10, 100)
	s.readAll()
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
func TestGrant_WhenAmountsDiffer_IsDecidedAgain(t *testing.T) {
	for _, asks := range []v1alpha1.Share{
		{GPUs: 1, Core: 10, MemMiB: 100}, {GPUs: 1, Core: 10, MemPercent: 10}, {GPUs: 1, Core: 11, MemMiB: 100}, {GPUs: 1, Core: 10, MemMiB: 101}, {GPUs: 1, Core: 10, MemPercent: 11},
	} {
		s := newStage(t, 1)
		s.create(objects.Single("p", asks))
		s.grant("n0", "p", 1, 10, 100)
		s.readAll()
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
func TestDeposedLeader_WhenPodIsUngated_ReleasesNothing(t *testing.T) {
	s := newStage(t, 1)
	p := s.add("p", 10, 100)
	s.readAll()
	s.grant("n0", p.UID, 0, 10, 100)
	s.read() // the grant is seen, what follows is not
	p.Spec.SchedulingGates, p.Spec.NodeName = nil, "n0"
	s.put(p)
	s.setNode("n0", cordoned)
	for s.step() {
	}
	if len(s.devicesOf("n0", "p")) == 0 {
		t.Error("Invariant 6: the slices of a pod that was ungated were taken back")
	}
}

// Invariant 1: a ledger that lost what it granted, by hand or by deletion, grants
// nothing else before it has it back.
func TestLostGrantsComeBack(t *testing.T) {
	s := newStage(t, 1)
	p := objects.Pod("p", map[string]v1alpha1.Share{"load": {GPUs: 1, Core: 100, MemMiB: 700}, "train": {GPUs: 2, Core: 60, MemMiB: 600}})
	p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[:1], p.Spec.Containers[1:]
	s.create(p)
	s.work()
	s.bind()
	n := s.node("n0")
	n.watch()
	n.start(always)
	s.work()
	spec := func() string {
		l := s.ledger("n0")
		for i := range l.Spec.Devices {
			for j := range l.Spec.Devices[i].Slices {
				l.Spec.Devices[i].Slices[j].Since = nil // lost with the slice
			}
		}
		return fmt.Sprint(l.Spec)
	}
	before := spec()
	s.editLedger("n0", func(l *v1alpha1.SliceLedger) { l.Spec = v1alpha1.SliceLedgerSpec{} })
	s.read()
	// The pod that comes at this moment must not get what is in use.
	s.add("q", 70, 700)
	s.read()
	s.queue.due = []queue.Item{{Pod: types.NamespacedName{Namespace: "ns", Name: "q"}}}
	s.step()
	s.expect("q", "Invariant 1: granted what runs already")
	s.allocator.begin(s.t.Context(), s.queue)
	s.work()
	if after := spec(); after != before {
		t.Errorf("before %s\nafter  %s", before, after)
	}
	s.vanish(s.get("p"))
	n.stop()
	n.watch()
	n.report()
	s.work()
	s.expect("q:*")
}

// Of many nodes that lack CPU a hundred are asked for the scheduler's words, whatever the
// first of them lacks, and the others are counted; one that doesn't lack any is asked.
func TestDiagnosis_WhenManyNodesLackCPU_IsBounded(t *testing.T) {
	const nodes = scheduling.MaxWords + 20
	s := newStage(t, nodes)
	for i := range nodes {
		edit := func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("1") }
		if i == nodes-1 {
			edit = cordoned
		}
		s.setNode(fmt.Sprint("n", i), edit)
	}
	judged := measured(t, "nodes_judged_sum")
	s.add("p", 50, 100, objects.CPU("2"))
	s.work()
	want := fmt.Sprintf("%d node(s) have the devices, but the scheduler would refuse them: %d Insufficient cpu, 1 node(s) were unschedulable, and %d more that lack CPU or memory",
		nodes, scheduling.MaxWords, nodes-1-scheduling.MaxWords)
	if got := s.newEvents(); len(got) != 1 || !strings.Contains(got[0], want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := measured(t, "nodes_judged_sum") - judged; got != scheduling.MaxWords+1 {
		t.Errorf("%v nodes were judged, want %d", got, scheduling.MaxWords+1)
	}
}

// judgedInFiveLooks is how many nodes the filters are asked about while all that waits is looked
// at five times.
func (s *stage) judgedInFiveLooks() float64 {
	s.t.Helper()
	before := measured(s.t, "nodes_judged_sum")
	for range 5 {
		s.lookAgain()
	}
	return measured(s.t, "nodes_judged_sum") - before
}

// Why a pod waits is found out once a minute, however often it is looked at and for however
// long its reason stays.
func TestDiagnosis_WhenReasonStays_IsRepeatedEachMinute(t *testing.T) {
	s := newStage(t, 1)
	s.add("p", 50, 100, objects.CPU("100"))
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
func TestDiagnosis_WhenReasonChanges_IsSent(t *testing.T) {
	s := newStage(t, 1)
	s.add("p", 50, 100, objects.CPU("100"))
	s.work()
	s.newEvents()
	undo := func() {}
	cpu, unschedulable := "1 Insufficient cpu", "1 node(s) were unschedulable"
	for _, want := range []string{unschedulable, cpu, unschedulable, cpu, unschedulable} {
		if undo(); want == unschedulable {
			undo = s.setNode("n0", cordoned)
		}
		s.pass(queue.RefusedDelay)
		s.pass(notify.RepeatAfter - queue.RefusedDelay)
		s.says(want)
	}
	s.pass(notify.RepeatAfter / 2)
	undo()
	s.pass(queue.RefusedDelay)
	s.pass(notify.RepeatAfter - queue.RefusedDelay)
	if got, sent := s.judgedInFiveLooks(), s.newEvents(); got != 0 || len(sent) > 0 {
		t.Errorf("asked %v times right after it was found out; events %q", got, sent)
	}
	// It was told four minutes ago then, for the third time.
	s.pass(notify.RepeatAfter)
	s.pass(notify.RepeatAfter / 2)
	s.says(cpu)
}

// One event for a reason, not one for a retry; new figures after a minute.
func TestEvents_WhenReasonStays_AreNotRepeated(t *testing.T) {
	s := newStage(t, 1)
	s.add("full", 90, 900)
	s.add("full2", 90, 900)
	s.work()
	s.newEvents()
	s.add("p", 50, 100)
	s.work()
	if got := s.newEvents(); len(got) != 1 || !strings.Contains(got[0], "needs 50 % compute and 100 MiB on one GPU; nearest: n0 GPU 0 has 10 % and 100 MiB free") {
		t.Fatalf("%q", got)
	}
	s.lookAgain()
	s.says()
	s.add("small", 5, 50)
	s.work()
	s.newEvents()
	s.lookAgain()
	s.says()
	s.clock.Step(notify.RepeatAfter)
	s.lookAgain()
	s.says("nearest: n0 GPU 1 has 10 % and 100 MiB free")
	uncordon := s.setNode("n0", cordoned)
	s.forget("full")
	s.says("1 node(s) have the devices, but the scheduler would refuse them: 1 node(s) were unschedulable")
	uncordon()
	s.pass(queue.RefusedDelay)
	s.expect("p:*")
}

// A pod that the scheduler refuses on its node is given up after a while: with a
// controller it is deleted, and its slices are free again.
func TestUnschedulable_WhenPinned_IsGivenUp(t *testing.T) {
	s := newStage(t, 1)
	counted := measured(t, "pin_refusals_total")
	s.add("alone", 10, 100)
	s.add("controlled", 10, 100, objects.Controlled)
	s.work()
	s.unschedulable("alone")
	s.unschedulable("controlled")
	s.newEvents()
	s.pass(bindwatch.RefusedGrace - time.Second)
	if got := s.newEvents(); len(got) != 0 || s.get("controlled") == nil {
		t.Fatalf("given up before the time: %q", got)
	}
	s.pass(time.Second)
	if got := s.newEvents(); len(got) != 3 || !strings.Contains(got[0], "free what it lacks") || !strings.Contains(got[1], "controller creates it again") || !strings.Contains(got[2], "had slices from") {
		t.Errorf("%q", got)
	}
	if n := measured(t, "pin_refusals_total") - counted; n != 2 {
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
	if got := s.newEvents(); len(got) != 0 || len(s.allocator.bindwatch.Remembered()) != 0 {
		t.Errorf("%q, or a refusal is kept", got)
	}
}

// Pods that were placed count on their node before they are bound.
func TestPlacedPod_WhenNotBound_TakesCPU(t *testing.T) {
	s := newStage(t, 1)
	s.add("first", 1, 1, objects.CPU("40"))
	s.add("second", 1, 1, objects.CPU("40"))
	s.work()
	s.expect("first:* second", "Invariant 7: 80 CPUs on a node of 64")
	s.forget("first")
	s.pass(queue.RefusedDelay)
	s.expect("second:*")
}

func TestTakeOverWithinFiveSeconds(t *testing.T) {
	// The retry of client-go's leader election is drawn out by up to 1.2 × itself.
	if worst := leaseDuration + 2*retryPeriod*22/10; worst > 5*time.Second {
		t.Errorf("a standby may take %v", worst)
	}
}
