// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/binding/bindwatch"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/test/objects"
)

// Invariant 6: a pod without a controller that the scheduler refuses does not keep
// its slices for ever. Bound in the end, it gets them again if there is room, and
// keeps nobody waiting if there is none.
func TestUnschedulable_WhenHeldTooLong_ReleasesSlices(t *testing.T) {
	for _, roomAgain := range []bool{true, false} {
		s := newStage(t, 1)
		// The node has the CPUs for one of alone and next.
		s.add("alone", 60, 600, objects.CPU("40"))
		s.add("other", 60, 600)
		s.work()
		s.schedule(s.get("other"))
		s.unschedulable("alone")
		s.add("next", 60, 600, objects.CPU("40"))
		s.pass(bindwatch.RefusedHold - time.Second)
		if !podstate.Gated(s.get("next")) || len(s.devicesOf("n0", "alone")) == 0 {
			t.Fatal("given back before the time")
		}
		s.newEvents()
		s.pass(time.Second)
		if podstate.Gated(s.get("next")) || len(s.devicesOf("n0", "alone")) > 0 {
			t.Fatalf("Invariant 6: a pod that is never bound keeps its slices, or its place: %q", s.newEvents())
		}
		if got := s.newEvents(); !slices.ContainsFunc(got, func(e string) bool { return strings.Contains(e, "its slices are given back") }) {
			t.Errorf("%q", got)
		}
		// Nothing is taken twice, and nothing comes back by itself.
		s.pass(bindwatch.RefusedHold)
		if got := s.newEvents(); len(got) != 0 || len(s.devicesOf("n0", "alone")) > 0 {
			t.Errorf("after ten more minutes: %q", got)
		}
		if roomAgain {
			s.forget("next")
		}
		s.schedule(s.get("alone"))
		s.work()
		if back := len(s.devicesOf("n0", "alone")) > 0; back != roomAgain {
			t.Errorf("room %v, booked again %v", roomAgain, back)
		}
		s.add("small", 10, 100)
		s.work()
		s.expect("small:*")
	}
}

// A pod that gave its slices back takes no room on its node for a new leader
// either, nor does it get them again.
func TestUnschedulable_WhenLeaderChanges_StaysReleased(t *testing.T) {
	s := newStage(t, 1)
	s.add("alone", 60, 600, objects.CPU("40"))
	s.work()
	s.unschedulable("alone")
	s.pass(bindwatch.RefusedHold)
	s.restart()
	s.add("next", 60, 600, objects.CPU("40"))
	s.work()
	if podstate.Gated(s.get("next")) || len(s.devicesOf("n0", "alone")) > 0 {
		t.Errorf("next waits: %v; alone holds %v", podstate.Gated(s.get("next")), s.devicesOf("n0", "alone"))
	}
}

// Invariant 7: a refused pod takes room on its node as long as it has slices.
func TestUnschedulable_WhenItHasSlices_TakesCPU(t *testing.T) {
	s := newStage(t, 1)
	p := s.add("alone", 10, 100, objects.CPU("40"))
	s.work()
	s.unschedulable("alone")
	s.lose("n0")
	s.work()
	s.grant("n0", p.UID, 0, 10, 100)
	s.add("next", 10, 100, objects.CPU("40"))
	s.work()
	s.expect("next", "Invariant 7: placed where another pod takes the room")
}

// Invariant 6: a pod that was deleted before it was bound, and that something else
// holds by a finalizer, does not keep its slices: it cannot be bound any more. One
// that is bound keeps them.
func TestDeletedPod_WhenNotBound_ReleasesSlices(t *testing.T) {
	for _, state := range []string{"gated", "placed", "bound"} {
		s := newStage(t, 1)
		p := s.add("p", 60, 600, objects.CPU("40"), func(p *corev1.Pod) {
			p.Finalizers = []string{"example.com/held"}
			if state == "gated" {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/another"})
			}
		})
		if state == "gated" {
			s.grant("n0", p.UID, 0, 10, 100)
		}
		s.work()
		if state == "bound" {
			s.bind()
		}
		s.delete("p")
		s.work()
		keeps := len(s.devicesOf("n0", "p")) > 0
		s.add("q", 60, 600, objects.CPU("40"))
		s.work()
		if keeps != (state == "bound") || podstate.Gated(s.get("q")) != keeps {
			t.Errorf("%s: keeps its slices %v, the next waits %v", state, keeps, podstate.Gated(s.get("q")))
		}
	}
}

// What happens to a pod that has its place takes no room of a round from pods that have
// none: neither the answer to its own patch, nor that it is bound, or runs. Nor does it
// when a new leader comes, or before another gate is gone.
func TestPlacedPod_WhenItChanges_IsNotQueued(t *testing.T) {
	s := newStage(t, 1)
	s.add("p", 10, 100)
	s.add("late", 10, 100, otherGated)
	none := func(when string) {
		t.Helper()
		s.readAll()
		if i := slices.IndexFunc(s.queue.due, func(it queue.Item) bool { return it.Pod.Name != "" }); i >= 0 {
			t.Errorf("%s %v is to be looked at", when, s.queue.due[i].Pod)
		}
	}
	s.readAll()
	s.step()
	s.expect("p:*")
	none("once it is let go,")
	s.schedule(s.get("p"))
	none("once it is bound,")
	p := s.get("p")
	p.Status.Phase = corev1.PodRunning
	s.setStatus(p)
	none("once it runs,")
	s.restart()
	none("with a new leader")
}
