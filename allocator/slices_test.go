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
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// A pod of a higher priority gets the slices of others, of as few and as unimportant ones as
// will do, and nobody of a lower or of its own priority takes them before it.
func TestPreemptsSlices(t *testing.T) {
	s := newStage(t, 1)
	s.add("low", 60, 600, objects.Priority(1), finalized)
	s.add("usual", 60, 600, objects.Priority(5), finalized)
	s.run()
	s.add("urgent", 50, 500, objects.Priority(10))
	s.work()
	if want := []types.UID{"low"}; !slices.Equal(s.evicted, want) {
		t.Fatalf("evicted %v, want %v", s.evicted, want)
	}
	sent := strings.Join(s.newEvents(), "\n")
	for _, want := range []string{notify.ReasonPreempting + " ends pods of lower priority: reserved on node n0 GPU 0, waits for pods low to end, about 30s", notify.ReasonPreempted + " evicted from node n0: its slices go to pod ns/urgent, which has a higher priority (10)"} {
		if !strings.Contains(sent, want) {
			t.Errorf("events %q, not %q", sent, want)
		}
	}
	s.add("thief", 60, 600, objects.Priority(5))
	s.work()
	s.add("fits", 30, 300, objects.Priority(10))
	s.work()
	s.expect("urgent thief fits:*")
	s.end()
	s.expect("urgent:* thief")
	s.reserved()
	s.pass(preemption.RetryAfter)
	if len(s.evicted) > 1 {
		t.Errorf("evicted %v", s.evicted)
	}
}

// Who was evicted is not once more, where the watch is slow to show that it ends; who is still
// there later is.
func TestEvictsOnce(t *testing.T) {
	s := newStage(t, 1)
	s.add("a", v1alpha1.WholeGPU, objects.DeviceMiB, objects.Priority(1), finalized)
	s.add("b", v1alpha1.WholeGPU, objects.DeviceMiB, objects.Priority(1000), finalized)
	s.run()
	s.newEvents()
	s.add("urgent", v1alpha1.WholeGPU, objects.DeviceMiB, objects.Priority(10))
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
		for _, e := range s.newEvents() {
			if strings.Contains(e, notify.ReasonPreempted) {
				got++
			}
		}
		if got != want {
			t.Errorf("sent %d times that it is evicted, want %d", got, want)
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
			s.add("first", v1alpha1.WholeGPU, objects.DeviceMiB, objects.Priority(10))
			for name, namespace := range map[string]string{"secret": "other", "mate": mate} {
				s.add(name, 50, 500, objects.Priority(1), finalized, objects.InNamespace(namespace))
			}
			s.run()
			s.newEvents()
			s.add("urgent", v1alpha1.WholeGPU, objects.DeviceMiB, objects.Priority(10))
			s.work()
			sent := slices.DeleteFunc(s.newEvents(), func(e string) bool { return strings.Contains(e, notify.ReasonWaiting) })
			for _, e := range sent {
				at := slices.IndexFunc(want, func(w string) bool { return strings.Contains(e, w) })
				if at < 0 || strings.Contains(e, "secret") || strings.Contains(e, "mate") != strings.Contains(want[at], "mate") ||
					strings.Contains(e, "urgent") != strings.Contains(want[at], "urgent") {
					t.Errorf("events %q, want %q", e, want)
				} else {
					want = slices.Delete(want, at, at+1)
				}
			}
			if len(want) > 0 {
				t.Errorf("events %q, not %q", sent, want)
			}
		})
	}
}

// Nobody is evicted where it is of no use, or not allowed.
func TestEvictsNobody(t *testing.T) {
	for name, tt := range map[string]struct {
		budgets []*policyv1.PodDisruptionBudget
		policy  preemption.Policy
		victim  func(*corev1.Pod)
		edits   []func(*corev1.Pod)
		want    int
	}{
		"it is of use":                 {edits: []func(*corev1.Pod){objects.Priority(10)}, want: 1},
		"nobody preempts":              {policy: preemption.Never, edits: []func(*corev1.Pod){objects.Priority(10)}},
		"it never preempts":            {edits: []func(*corev1.Pod){objects.Priority(10), neverPreempts}},
		"of the same priority":         {edits: []func(*corev1.Pod){objects.Priority(1)}},
		"the filters refuse the node":  {edits: []func(*corev1.Pod){objects.Priority(10), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "none"} }}},
		"the node has too little CPU":  {edits: []func(*corev1.Pod){objects.Priority(10), objects.CPU("65")}},
		"the victim has the CPU":       {victim: objects.CPU("60"), edits: []func(*corev1.Pod){objects.Priority(10), objects.CPU("60")}, want: 1},
		"a budget keeps the victim":    {budgets: []*policyv1.PodDisruptionBudget{objects.Budget("b", "x", 0)}, edits: []func(*corev1.Pod){objects.Priority(10)}},
		"a budget lets it go":          {budgets: []*policyv1.PodDisruptionBudget{objects.Budget("b", "x", 1)}, edits: []func(*corev1.Pod){objects.Priority(10)}, want: 1},
		"several budgets cover it":     {budgets: []*policyv1.PodDisruptionBudget{objects.Budget("b", "x", 5), objects.Budget("c", "x", 5)}, edits: []func(*corev1.Pod){objects.Priority(10)}},
		"a budget of others":           {budgets: []*policyv1.PodDisruptionBudget{objects.Budget("b", "y", 0)}, edits: []func(*corev1.Pod){objects.Priority(10)}, want: 1},
		"its own gang is not complete": {edits: []func(*corev1.Pod){objects.Priority(10), objects.InGang("g", 2)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 1, budgeted(tt.budgets...), func(w *world) { w.preemption = tt.policy })
			edits := []func(*corev1.Pod){objects.Priority(1), objects.Labelled("x"), finalized}
			if tt.victim != nil {
				edits = append(edits, tt.victim)
			}
			s.add("a", v1alpha1.WholeGPU, objects.DeviceMiB, edits...)
			s.add("b", v1alpha1.WholeGPU, objects.DeviceMiB, objects.Priority(1000), finalized)
			s.run()
			s.add("urgent", 50, 500, tt.edits...)
			s.work()
			s.pass(2 * preemption.RetryAfter)
			if len(s.evicted) != tt.want {
				t.Errorf("evicted %v, want %d", s.evicted, tt.want)
			}
			s.end()
			if waits := podstate.Gated(s.get("urgent")); waits != (tt.want == 0) {
				t.Errorf("waits: %v", waits)
			}
		})
	}
}

// Where a pod ends already that makes room enough, nobody else has to: also under a new leader,
// which finds the victims of the one before.
func TestWaitsForPodsThatEnd(t *testing.T) {
	s := newStage(t, 1)
	s.add("a", v1alpha1.WholeGPU, objects.DeviceMiB, objects.Priority(1), finalized)
	s.add("b", v1alpha1.WholeGPU, objects.DeviceMiB, objects.Priority(1), finalized)
	s.run()
	s.add("urgent", 50, 500, objects.Priority(10))
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
	s.expect("urgent:*")
}

// A pod that asks for a whole GPU gets one although small pods stream in: the room where it is
// free first. Pods that have left by then fill it.
func TestHeadOfLine(t *testing.T) {
	for name, whole := range map[string][]string{"a pod": {"whole"}, "a gang": {"whole0", "whole1"}} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 1, reserving)
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
			s.reserved()
			s.pass(time.Second)
			all := s.allocator.reservations.All()
			on := string(s.devicesOf("n0", "short")[0])
			if len(all) != 1 || len(all[0].Leaving) != 1 || all[0].Plans[0].Grants[0].UUID != on {
				t.Fatalf("reserved %+v, want what short is on, %s", all, on)
			}
			if sent := strings.Join(s.newEvents(), "\n"); !strings.Contains(sent, notify.ReasonReserved+" reserved on node n0 GPU") || !strings.Contains(sent, "waits for pods short to end, about ") {
				t.Errorf("events %q", sent)
			}
			s.add("small0", 5, 50, s.created)
			s.add("small1", 5, 50, s.created)
			s.add("small2", 5, 50, s.created)
			s.add("filler", 5, 50, s.created, endsAfter(10*time.Minute))
			s.work()
			s.expect("small0:* small1:* small2 filler:*")
			s.says("10 % and 100 MiB free, of which 10 % and 0 MiB are reserved for others")
			if got := s.devicesOf("n0", "filler"); string(got[0]) != on {
				t.Errorf("the filler is on %v, want %s", got, on)
			}
			s.vanish(s.get("filler"))
			s.delete("short")
			s.end()
			if got := s.atTheGate(append(whole, "small2")...); got != "small2" {
				t.Errorf("%v and small2 wait: %v", whole, got)
			}
		})
	}
}

// One that waits with a high priority and fits nowhere does not slow down the others.
func TestRound_WhenHighPriorityNeverFits_IsOneWrite(t *testing.T) {
	s := newStage(t, 1)
	s.add("large", v1alpha1.WholeGPU, 100*objects.DeviceMiB, objects.Priority(10))
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
	s := newStage(t, 1, reserving)
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
	s.delete("a")
	s.add("urgent", 95, 10, s.created, objects.Priority(5))
	s.readAll()
	s.end()
	s.expect("urgent:*")
	s.pass(time.Minute)
	all = s.allocator.reservations.All()
	if len(all) != 1 || all[0].Leaving["b"].Name == "" {
		t.Errorf("reserved %+v, want what b is on", all)
	}
}
