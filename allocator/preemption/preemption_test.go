// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// A pod goes where the scheduler does the least harm for it, and nowhere where that would be
// in vain.
func TestPostFilter(t *testing.T) {
	tests := []struct {
		name string
		// others are the priorities of what takes 60 CPUs of the nodes n and m.
		others [2]int32
		edit   func(*corev1.Pod)
		want   string
	}{
		{"the least important goes", [2]int32{5, 1}, nil, "m"},
		{"the only one that may go", [2]int32{5, 2000}, nil, "n"},
		{"nobody may go", [2]int32{2000, 2000}, nil, ""},
		{"it ends nobody", [2]int32{5, 1}, func(p *corev1.Pod) { p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) }, ""},
		{"no node is large enough", [2]int32{5, 1}, func(p *corev1.Pod) { *p = *newPod("p", "65") }, ""},
		{"no device is", [2]int32{5, 1}, func(p *corev1.Pod) {
			*p = *objects.Pod("p", map[string]v1alpha1.Share{"c": objects.Share(10, objects.DeviceMiB+1)})
			p.Spec.Priority = ptr.To[int32](1000)
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, "n", "m")
			for i, node := range []string{"n", "m"} {
				f.other(node, tt.others[i], "60")
			}
			p := newPod("p", "40")
			if tt.edit != nil {
				tt.edit(p)
			}
			got, later := f.postFilter(f.add(p))
			if got != tt.want || later || f.nominated[p.UID] != (tt.want != "") {
				t.Errorf("node %q, later: %v, nominated: %v; want %q", got, later, f.nominated, tt.want)
			}
		})
	}
}

// A pod for which no node would do is asked for again after a while, and not before.
func TestRetryAfter(t *testing.T) {
	f := newFixture(t, "n")
	f.other("n", 1, "60")
	p := f.add(newPod("p", "65"))
	if node, _ := f.postFilter(p); node != "" || f.asked != 1 {
		t.Fatalf("node %q, asked %d times", node, f.asked)
	}
	f.clock.Step(RetryAfter - time.Second)
	if f.postFilter(p); f.asked != 1 || f.again(p) != time.Second {
		t.Errorf("before its time asked %d times, again in %v", f.asked, f.again(p))
	}
	if q := f.add(newPod("q", "40")); !f.Due(q) {
		t.Error("another pod waits too")
	}
	f.clock.Step(time.Second)
	if f.postFilter(p); f.asked != 2 {
		t.Errorf("at its time asked %d times", f.asked)
	}
}

// The next time those nodes are asked that were not.
func TestAllNodesHaveTheirTurn(t *testing.T) {
	var nodes []string
	for i := range MaxNodes + 20 {
		nodes = append(nodes, fmt.Sprintf("n%03d", i))
	}
	f := newFixture(t, nodes...)
	for _, node := range nodes[:len(nodes)-1] {
		f.other(node, 1, "1")
		f.other(node, 2000, "60")
	}
	last := nodes[len(nodes)-1]
	f.other(last, 1, "60")
	p := f.add(newPod("p", "40"))
	if node, _ := f.postFilter(p); node != "" || f.again(p) != RetryAfter {
		t.Fatalf("node %q, again in %v", node, f.again(p))
	}
	f.clock.Step(RetryAfter)
	if node, _ := f.postFilter(p); node != last {
		t.Errorf("node %q, want %s", node, last)
	}
}

// A look for nodes ends when its time is over, and goes on there the next time.
func TestHostileNodesEndTheLook(t *testing.T) {
	var nodes []string
	for i := range MaxNodes / 2 {
		nodes = append(nodes, fmt.Sprintf("n%03d", i))
	}
	f := newFixture(t, nodes...)
	for _, node := range nodes {
		f.other(node, 1, "1")
		f.other(node, 2000, "60")
	}
	clock := &slow{FakeClock: f.clock, takes: searchTime / 5}
	f.Preemption.clock = clock
	p := f.add(newPod("p", "40"))
	if node, _ := f.postFilter(p); node != "" || f.lastAttempt[p.UID].resumeIndex == 0 || f.lastAttempt[p.UID].resumeIndex > 5 {
		t.Errorf("node %q, goes on at %d", node, f.lastAttempt[p.UID].resumeIndex)
	}
}

// A long pause does not have it take the first node that would do.
func TestSomeNodesAreCompared(t *testing.T) {
	f := newFixture(t, "n0", "n1", "n2")
	for i, priority := range []int32{3, 2, 1} {
		f.other(fmt.Sprint("n", i), priority, "60")
	}
	f.Preemption.clock = &slow{FakeClock: f.clock, takes: searchTime}
	if node, _ := f.postFilter(f.add(newPod("p", "40"))); node != "n2" {
		t.Errorf("node %q, want n2, where the least harm is done", node)
	}
}

// While nodes are looked for nobody is placed: others have their share of the time.
func TestWorkerShare(t *testing.T) {
	f := newFixture(t, "n")
	f.other("n", 1, "60")
	f.takes = 100 * time.Millisecond
	pause := (WorkerShare - 1) * f.takes
	f.postFilter(f.add(newPod("p", "40")))
	q := f.add(newPod("q", "40"))
	f.clock.Step(pause - time.Millisecond)
	if _, later := f.postFilter(q); !later || f.asked != 1 || f.again(q) != time.Millisecond {
		t.Errorf("later: %v, asked %d times, again in %v", later, f.asked, f.again(q))
	}
	f.clock.Step(time.Millisecond)
	if node, later := f.postFilter(q); node != "n" || later {
		t.Errorf("node %q, later: %v", node, later)
	}
}

// controlledBy gives the pod a controller.
func controlledBy(p *corev1.Pod, uid types.UID) *corev1.Pod {
	if uid != "" {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: string(uid), UID: uid, Controller: ptr.To(true)}}
	}
	return p
}

// Which pods wait after one was nominated in vain.
func TestBackoffAfterFailure(t *testing.T) {
	const looked = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
	tests := []struct {
		name       string
		controller types.UID
		// message is the scheduler's, cordoned that the filters know why it refuses.
		message  string
		cordoned bool
		// same, other and foreign are whether a pod of the same controller waits, one of
		// another controller, and one of another scheduler.
		same, other, foreign bool
	}{
		{"it found no victims", "r", looked, false, true, false, false},
		{"it does not preempt", "r", "0/1 nodes are available: 1 Insufficient cpu.", false, true, true, false},
		{"it does not preempt for a pod without a controller", "", "0/1 nodes are available: 1 Insufficient cpu.", false, true, true, false},
		{"no controller makes it again", "", looked, false, false, false, false},
		{"the node was cordoned", "r", looked, true, false, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, "n")
			f.other("n", 1, "60")
			p := f.add(controlledBy(newPod("p", "40"), tt.controller))
			if node, _ := f.postFilter(p); node != "n" {
				t.Fatalf("node %q", node)
			}
			l := f.known.Index.Ledger("n").DeepCopy()
			p = objects.Place(p.DeepCopy(), l, map[string]int{"c": 0})
			f.known.SetLedger(objects.Grant(l, p, map[string]int{"c": 0}))
			p.ResourceVersion = "2"
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: tt.message}}
			f.add(p)
			if tt.cordoned {
				node := objects.Node("n")
				node.Spec.Unschedulable = true
				f.filters.SetNode(node)
			}
			if err := f.Failed(t.Context(), p); err != nil || f.kept() != 0 {
				t.Fatalf("error %v, %d notes on pods", err, f.kept())
			}
			same, other, foreign := controlledBy(newPod("same", "40"), tt.controller), controlledBy(newPod("other", "40"), "s"), controlledBy(newPod("foreign", "40"), tt.controller)
			foreign.Spec.SchedulerName = "another"
			wait := map[*corev1.Pod]bool{same: tt.same, other: tt.other, foreign: tt.foreign}
			for p, waits := range wait {
				if f.Due(f.add(p)) == waits || waits && f.again(p) != failedBackoff {
					t.Errorf("%s waits: %v, want %v; again in %v", p.Name, !waits, waits, f.again(p))
				}
			}
			f.clock.Step(failedBackoff)
			for p := range wait {
				if !f.Due(p) {
					t.Errorf("%s waits for ever", p.Name)
				}
			}
		})
	}
}

// A pod that was not nominated, or not any more, is refused for its own reasons.
func TestFailedWithoutNomination(t *testing.T) {
	f := newFixture(t, "n")
	p := f.add(controlledBy(newPod("p", "40"), "r"))
	f.Nominate(p)
	f.Denominate(p)
	if err := f.Failed(t.Context(), p); err != nil || len(f.backoff) != 0 {
		t.Errorf("error %v, backoff %v", err, f.backoff)
	}
}

// Of a pod that is gone nothing is noted, whatever was under way for it.
func TestForget(t *testing.T) {
	f := newFixture(t, "n")
	f.other("n", 1, "60")
	fits, not := f.add(newPod("p", "40")), f.add(newPod("q", "65"))
	look := func() {
		f.postFilter(fits)
		f.postFilter(not)
	}
	if look(); f.kept() != 2 {
		t.Fatalf("%d notes on pods, want 2", f.kept())
	}
	for _, p := range []*corev1.Pod{fits, not} {
		f.known.DeletePod(p, true)
		f.Forget(p)
	}
	if f.kept() != 0 {
		t.Errorf("%d notes on pods", f.kept())
	}
	if look(); f.kept() != 0 || f.asked != 4 {
		t.Errorf("%d notes on pods after a late look, asked %d times", f.kept(), f.asked)
	}
}
