// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// deletedFor is a user who deletes a pod with that grace.
func (s *stage) deletedFor(name string, grace time.Duration) {
	s.t.Helper()
	p := s.get(name)
	s.must(s.api.Delete(s.t.Context(), p))
	s.must(s.api.Get(s.t.Context(), client.ObjectKeyFromObject(p), p))
	p.DeletionTimestamp = &metav1.Time{Time: s.clock.Now().Add(grace)}
	s.notify(p, false)
	s.work()
}

// A pod of 1 % that is being deleted with a grace of three years: priority 1000 has the GPU beside it, with less harm, and
// a third pod what is free on the GPU of the first.
func TestHostileGraceHoldsNoGPU(t *testing.T) {
	s := newStage(t, 1)
	s.add("slow", 1, 1, finalized, objects.Priority(5))
	s.add("cheap", v1alpha1.WholeGPU, 1, finalized)
	s.run()
	s.deletedFor("slow", 3*365*24*time.Hour)
	s.add("urgent", v1alpha1.WholeGPU, 1, objects.Priority(1000))
	s.work()
	s.evicts("cheap")
	s.add("third", 90, 1)
	s.vanish(s.get("cheap"))
	for range 3 {
		s.node("n0").watch()
		s.node("n0").end("cheap")
		s.node("n0").report()
	}
	s.work()
	s.pass(queue.RefusedDelay)
	s.expect("urgent:* third:*")
}

// A victim that stays past its grace period, as where a process of it can't be killed: 30 s later another
// is chosen, the first is not again, others have the room that it leaves, and the waiting pod gets an event.
func TestHostileVictimStays(t *testing.T) {
	s := newStage(t, 1)
	s.add("stays", 60, 600, objects.Priority(1), finalized)
	s.add("other", 60, 600, objects.Priority(2), finalized)
	s.run()
	s.add("urgent", 60, 600, objects.Priority(10))
	s.work()
	s.add("third", 30, 1)
	s.add("fourth", 40, 1)
	s.work()
	s.evicts("stays")
	s.newEvents()
	for passed := time.Duration(0); passed < 2*preemption.LeaveLate+2*preemption.RetryAfter; passed += preemption.EvictAgain {
		s.pass(preemption.EvictAgain)
	}
	if len(s.evicted) != 2 || s.evicted[1] != "other" {
		t.Fatalf("evicted %v, want the other one too", s.evicted)
	}
	sent := strings.Join(s.newEvents(), "\n")
	for _, want := range []string{notify.ReasonUnreserved + " room is reserved for it no longer: a pod that was to leave is still there", notify.ReasonPreempting} {
		if !strings.Contains(sent, want) {
			t.Errorf("events %q, not %q", sent, want)
		}
	}
	s.expect("third:* fourth:*")
	// Where that one stays too, nobody is left: urgent waits, its event says why, and it keeps nothing.
	for range 40 {
		s.pass(preemption.RetryAfter)
	}
	if len(s.evicted) != 2 || len(s.allocator.reservations.All()) > 0 {
		t.Errorf("evicted %v, %d reservations", s.evicted, len(s.allocator.reservations.All()))
	}
	const want = "1 pod(s) of lower priority would make room and cannot leave: pod stays is being deleted, and has not ended 30s after its grace period"
	s.says(want)
}

// A gang for which room is reserved and whose last member never comes loses it in a minute, gets none
// again while it is incomplete, and says what it lacks.
func TestHostileGangThatNeverComes(t *testing.T) {
	s := newStage(t, 1, reserving)
	s.add("busy0", 90, 900, s.created, finalized)
	s.add("busy1", 90, 900, s.created, finalized)
	s.run()
	for _, name := range []string{"g0", "g1"} {
		s.add(name, 50, 1, s.created, objects.InGang("g", 2))
	}
	s.add("whole", v1alpha1.WholeGPU, 1, s.created)
	s.work()
	s.pass(10 * time.Minute)
	s.reserved("g")
	s.newEvents()
	for _, name := range []string{"g0", "g1"} {
		s.edit(name, objects.InGang("g", 3))
	}
	s.pass(queue.ElsewherePatience)
	s.pass(reservation.MaxAway)
	for range 10 {
		s.pass(queue.FlushAfter)
	}
	s.reserved("whole")
	sent := strings.Join(s.newEvents(), "\n")
	for _, want := range []string{
		notify.ReasonUnreserved + " room is reserved for it no longer: the pod has waited for something else than room for 1m0s",
		"Kueue's pod group ns/g: 2 of 3 pods are there; they start together",
	} {
		if !strings.Contains(sent, want) {
			t.Errorf("events %q, not %q", sent, want)
		}
	}
}

// The first that waits and then selects no node loses the room within some minutes, is told what the
// scheduler has against it, and the next gets it.
func TestHostileOwnerThatSelectsNothing(t *testing.T) {
	s := newStage(t, 1, reserving)
	s.add("busy0", 90, 900, s.created, finalized)
	s.add("busy1", 90, 900, s.created, finalized)
	s.run()
	s.add("first", v1alpha1.WholeGPU, 1, s.created)
	s.add("next", v1alpha1.WholeGPU, 1, s.created)
	s.work()
	s.pass(10 * time.Minute)
	s.reserved("first")
	s.edit("first", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "none"} })
	for passed := time.Duration(0); passed <= preemption.PassedOver+queue.FlushAfter; passed += queue.FlushAfter {
		s.pass(queue.FlushAfter)
	}
	s.reserved("next")
	s.says(notify.ReasonUnreserved + " room is reserved for it no longer: the scheduler would refuse the pod on node n0: node(s) didn't match node selector zone=none")
}
