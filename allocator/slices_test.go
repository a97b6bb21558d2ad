// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// run binds the pods that are placed and starts them.
func (s *stage) run() {
	s.t.Helper()
	s.work()
	for slices.ContainsFunc(s.live, unbound) {
		s.bind()
	}
	for _, n := range s.nodes {
		n.watch()
		n.start(always)
		n.report()
	}
	s.work()
}

// finalized is a pod that is there until its node has ended it.
func finalized(p *corev1.Pod) { p.Finalizers = []string{"example.com/finalized"} }

// end has the pods that are being deleted end, and their slices be released.
func (s *stage) end() {
	s.t.Helper()
	for _, n := range s.nodes {
		for range 8 {
			n.watch()
			n.stop()
			n.report()
		}
	}
	s.work()
	s.pass(queue.RefusedDelay)
}

// waiting says of pods whether they wait at the gate, in order.
func (s *stage) waiting(names ...string) (waits []bool) {
	for _, name := range names {
		p := s.get(name)
		waits = append(waits, p != nil && podstate.Gated(p))
	}
	return waits
}

// A pod of a higher priority gets the slices of others, of as few and as unimportant ones as
// will do, and nobody of a lower or of its own priority takes them before it.
func TestPreemptsSlices(t *testing.T) {
	s := newStage(t, 1)
	s.add("low", 60, 600, priority(1), finalized)
	s.add("usual", 60, 600, priority(5), finalized)
	s.run()
	s.add("urgent", 50, 500, priority(10))
	s.work()
	if want := []types.UID{"low"}; !slices.Equal(s.evicted, want) {
		t.Fatalf("evicted %v, want %v", s.evicted, want)
	}
	told := strings.Join(s.told(), "\n")
	for _, want := range []string{notify.ReasonPreempting + " ends pods of lower priority: reserved on node n0 GPU 0, waits for pods low to end, about 30s", notify.ReasonPreempted + " evicted from node n0: its slices go to pod ns/urgent, which has a higher priority (10)"} {
		if !strings.Contains(told, want) {
			t.Errorf("told %q, not %q", told, want)
		}
	}
	s.add("thief", 60, 600, priority(5))
	s.work()
	s.add("fits", 30, 300, priority(10))
	s.work()
	if got := s.waiting("urgent", "thief", "fits"); !slices.Equal(got, []bool{true, true, false}) {
		t.Fatalf("urgent, thief and fits wait: %v", got)
	}
	s.end()
	if got := s.waiting("urgent", "thief"); !slices.Equal(got, []bool{false, true}) {
		t.Errorf("urgent and thief wait: %v", got)
	}
	if all := s.allocator.reservations.All(); len(all) != 0 {
		t.Errorf("%d reservations are left", len(all))
	}
	s.pass(preemption.RetryAfter)
	if len(s.evicted) > 1 {
		t.Errorf("evicted %v", s.evicted)
	}
}

// Who was evicted is not once more, where the watch is slow to show that it ends; who is still
// there later is.
func TestEvictsOnce(t *testing.T) {
	s := newStage(t, 1)
	s.add("a", v1alpha1.WholeGPU, objects.DeviceMiB, priority(1), finalized)
	s.add("b", v1alpha1.WholeGPU, objects.DeviceMiB, priority(1000), finalized)
	s.run()
	s.told()
	s.add("urgent", v1alpha1.WholeGPU, objects.DeviceMiB, priority(10))
	for len(s.evicted) == 0 {
		s.read()
		s.step()
	}
	look := func(want int) {
		t.Helper()
		s.queue.Add(queue.Item{Pod: podstate.KeyOf(s.get("urgent"))})
		for s.step() {
		}
		got := 0
		for _, e := range s.told() {
			if strings.Contains(e, notify.ReasonPreempted) {
				got++
			}
		}
		if got != want {
			t.Errorf("told %d times that it is evicted, want %d", got, want)
		}
	}
	look(1)
	s.clock.Step(preemption.EvictAgain)
	look(1)
}

// What a pod is told names no pod of another namespace: its events are read by all that may read
// those of its own.
func TestNamesNoPodsOfOtherNamespaces(t *testing.T) {
	const stranger = "its slices go to a pod of another namespace, which has"
	for mate, want := range map[string][]string{
		"ns":    {"waits for pods mate and 1 of other namespaces to end", "its slices go to pod ns/urgent, which has", stranger},
		"third": {"waits for 2 pods of other namespaces to end", stranger, stranger},
	} {
		t.Run(mate, func(t *testing.T) {
			s := newStage(t, 1)
			s.add("first", v1alpha1.WholeGPU, objects.DeviceMiB, priority(10))
			for name, namespace := range map[string]string{"secret": "other", "mate": mate} {
				s.add(name, 50, 500, priority(1), finalized, func(p *corev1.Pod) { p.Namespace = namespace })
			}
			s.run()
			s.told()
			s.add("urgent", v1alpha1.WholeGPU, objects.DeviceMiB, priority(10))
			s.work()
			told := slices.DeleteFunc(s.told(), func(e string) bool { return strings.Contains(e, notify.ReasonWaiting) })
			for _, e := range told {
				at := slices.IndexFunc(want, func(w string) bool { return strings.Contains(e, w) })
				if at < 0 || strings.Contains(e, "secret") || strings.Contains(e, "mate") != strings.Contains(want[at], "mate") ||
					strings.Contains(e, "urgent") != strings.Contains(want[at], "urgent") {
					t.Errorf("told %q, want %q", e, want)
				} else {
					want = slices.Delete(want, at, at+1)
				}
			}
			if len(want) > 0 {
				t.Errorf("told %q, not %q", told, want)
			}
		})
	}
}

// Nobody is evicted where it is of no use, or not allowed.
func TestEvictsNobody(t *testing.T) {
	budget := func(name, app string, allowed int32) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
			Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed}}
	}
	for name, tt := range map[string]struct {
		budgets []*policyv1.PodDisruptionBudget
		policy  preemption.Policy
		victim  func(*corev1.Pod)
		edits   []func(*corev1.Pod)
		want    int
	}{
		"it is of use":                 {edits: []func(*corev1.Pod){priority(10)}, want: 1},
		"nobody preempts":              {policy: preemption.Never, edits: []func(*corev1.Pod){priority(10)}},
		"it never preempts":            {edits: []func(*corev1.Pod){priority(10), neverPreempts}},
		"of the same priority":         {edits: []func(*corev1.Pod){priority(1)}},
		"the filters refuse the node":  {edits: []func(*corev1.Pod){priority(10), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "none"} }}},
		"the node has too little CPU":  {edits: []func(*corev1.Pod){priority(10), cpu("65")}},
		"the victim has the CPU":       {victim: cpu("60"), edits: []func(*corev1.Pod){priority(10), cpu("60")}, want: 1},
		"a budget keeps the victim":    {budgets: []*policyv1.PodDisruptionBudget{budget("b", "x", 0)}, edits: []func(*corev1.Pod){priority(10)}},
		"a budget lets it go":          {budgets: []*policyv1.PodDisruptionBudget{budget("b", "x", 1)}, edits: []func(*corev1.Pod){priority(10)}, want: 1},
		"several budgets cover it":     {budgets: []*policyv1.PodDisruptionBudget{budget("b", "x", 5), budget("c", "x", 5)}, edits: []func(*corev1.Pod){priority(10)}},
		"a budget of others":           {budgets: []*policyv1.PodDisruptionBudget{budget("b", "y", 0)}, edits: []func(*corev1.Pod){priority(10)}, want: 1},
		"its own gang is not complete": {edits: []func(*corev1.Pod){priority(10), objects.InGang("g", 2)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 1)
			s.budgets, s.preemption = tt.budgets, tt.policy
			for _, b := range tt.budgets {
				s.objects = append(s.objects, b)
			}
			s.restart()
			edits := []func(*corev1.Pod){priority(1), objects.Labelled("x"), finalized}
			if tt.victim != nil {
				edits = append(edits, tt.victim)
			}
			s.add("a", v1alpha1.WholeGPU, objects.DeviceMiB, edits...)
			s.add("b", v1alpha1.WholeGPU, objects.DeviceMiB, priority(1000), finalized)
			s.run()
			s.add("urgent", 50, 500, tt.edits...)
			s.work()
			s.pass(2 * preemption.RetryAfter)
			if len(s.evicted) != tt.want {
				t.Errorf("evicted %v, want %d", s.evicted, tt.want)
			}
			s.end()
			if waits := s.waiting("urgent")[0]; waits != (tt.want == 0) {
				t.Errorf("waits: %v", waits)
			}
		})
	}
}

// Where a pod ends already that makes room enough, nobody else has to: also under a new leader,
// which finds the victims of the one before.
func TestWaitsForPodsThatEnd(t *testing.T) {
	s := newStage(t, 1)
	s.add("a", v1alpha1.WholeGPU, objects.DeviceMiB, priority(1), finalized)
	s.add("b", v1alpha1.WholeGPU, objects.DeviceMiB, priority(1), finalized)
	s.run()
	s.add("urgent", 50, 500, priority(10))
	s.work()
	if len(s.evicted) != 1 {
		t.Fatalf("evicted %v", s.evicted)
	}
	s.restart()
	s.work()
	if len(s.evicted) != 1 || len(s.allocator.reservations.All()) != 1 {
		t.Errorf("a new leader: evicted %v, %d reservations", s.evicted, len(s.allocator.reservations.All()))
	}
	// One that does not end in time is not waited for.
	s.pass(preemption.LeaveLate + time.Minute)
	s.pass(preemption.RetryAfter)
	if len(s.evicted) != 2 {
		t.Errorf("after its time: evicted %v", s.evicted)
	}
	s.end()
	if s.waiting("urgent")[0] {
		t.Error("urgent waits")
	}
}

// newHeadStage reserves room for the first that waits after ten minutes.
func newHeadStage(t *testing.T, nodes int) *stage {
	s := newStage(t, nodes)
	s.reserveAfter = 10 * time.Minute
	s.restart()
	s.allocator.notify.Events = s.events
	return s
}

// created is a pod that is created now.
func (s *stage) created(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(s.clock.Now()) }

// endsAfter is a pod that ends by itself so long after its start.
func endsAfter(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To(int64(d.Seconds())) }
}

// A pod that asks for a whole GPU gets one although small pods stream in: the room where it is
// free first. Pods that have left by then fill it.
func TestHeadOfLine(t *testing.T) {
	for name, whole := range map[string][]string{"a pod": {"whole"}, "a gang": {"whole0", "whole1"}} {
		t.Run(name, func(t *testing.T) {
			s := newHeadStage(t, 1)
			s.add("long", 90, 900, s.created, endsAfter(4*time.Hour), finalized)
			s.add("short", 90, 900, s.created, endsAfter(50*time.Minute), finalized)
			s.run()
			share, gang := v1alpha1.Percent(v1alpha1.WholeGPU), func(*corev1.Pod) {}
			if len(whole) > 1 {
				share, gang = v1alpha1.WholeGPU/2, objects.InGang("g", 2)
			}
			for _, name := range whole {
				s.add(name, share, 1, s.created, gang)
			}
			s.work()
			s.pass(10*time.Minute - time.Second)
			if all := s.allocator.reservations.All(); len(all) > 0 {
				t.Fatalf("%d reservations before the time", len(all))
			}
			s.pass(time.Second)
			all := s.allocator.reservations.All()
			on := string(s.devicesOf("n0", "short")[0])
			if len(all) != 1 || len(all[0].Leaving) != 1 || all[0].Plans[0].Grants[0].UUID != on {
				t.Fatalf("reserved %+v, want what short is on, %s", all, on)
			}
			if told := strings.Join(s.told(), "\n"); !strings.Contains(told, notify.ReasonReserved+" reserved on node n0 GPU") || !strings.Contains(told, "waits for pods short to end, about ") {
				t.Errorf("told %q", told)
			}
			s.add("small0", 5, 50, s.created)
			s.add("small1", 5, 50, s.created)
			s.add("small2", 5, 50, s.created)
			s.add("filler", 5, 50, s.created, endsAfter(10*time.Minute))
			s.work()
			if got := s.waiting("small0", "small1", "small2", "filler"); !slices.Equal(got, []bool{false, false, true, false}) {
				t.Fatalf("small0, small1, small2, filler wait: %v", got)
			}
			if told := strings.Join(s.told(), "\n"); !strings.Contains(told, "10 % and 100 MiB free, of which 10 % and 0 MiB are reserved for others") {
				t.Errorf("small2 waits beside a GPU that others see as free, and was told %q", told)
			}
			if got := s.devicesOf("n0", "filler"); string(got[0]) != on {
				t.Errorf("the filler is on %v, want %s", got, on)
			}
			s.vanish(s.get("filler"))
			s.must(s.remove(s.get("short")))
			s.end()
			if got := s.waiting(append(whole, "small2")...); slices.Contains(got[:len(whole)], true) || !got[len(whole)] {
				t.Errorf("%v and small2 wait: %v", whole, got)
			}
		})
	}
}

// One that waits with a high priority and fits nowhere does not slow down the others.
func TestTheUnplaceableHoldsUpNobody(t *testing.T) {
	s := newStage(t, 1)
	s.add("large", v1alpha1.WholeGPU, 100*objects.DeviceMiB, priority(10))
	s.work()
	for i := range 30 {
		s.add(fmt.Sprint("p", i), 1, 1)
	}
	s.readAll()
	s.step()
	if s.work(); s.updates > 2 {
		t.Errorf("30 pods took %d writes of the ledger", s.updates)
	}
}

// Room of which a higher priority has taken a part is reserved no longer: its owner gets other.
func TestTakenRoomIsReservedAgain(t *testing.T) {
	s := newHeadStage(t, 1)
	s.add("a", 90, 900, s.created, endsAfter(40*time.Minute), finalized)
	s.add("b", 90, 900, s.created, endsAfter(50*time.Minute), finalized)
	s.run()
	s.add("whole", v1alpha1.WholeGPU, 1, s.created)
	s.work()
	s.pass(10 * time.Minute)
	all := s.allocator.reservations.All()
	if len(all) != 1 || all[0].Leaving["a"].Name == "" {
		t.Fatalf("reserved %+v", all)
	}
	s.must(s.remove(s.get("a")))
	s.add("urgent", 95, 10, s.created, priority(5))
	s.readAll()
	s.end()
	if s.waiting("urgent")[0] {
		t.Fatal("urgent waits")
	}
	s.pass(time.Minute)
	all = s.allocator.reservations.All()
	if len(all) != 1 || all[0].Leaving["b"].Name == "" {
		t.Errorf("reserved %+v, want what b is on", all)
	}
}
