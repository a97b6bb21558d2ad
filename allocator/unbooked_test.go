// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"vernier.dev/vernier/api/v1alpha1"
)

// lose empties the ledger's spec, as somebody who edits it by hand, and
// recreate makes the whole ledger anew, as its node does after a deletion.
func (s *stage) lose(node string) {
	s.t.Helper()
	l := s.ledger(node)
	l.Spec = v1alpha1.SliceLedgerSpec{}
	s.must(s.api.Update(s.t.Context(), l))
	s.notify(l, false)
}

func (s *stage) recreate(node string) {
	s.t.Helper()
	old := s.ledger(node)
	s.must(s.api.Delete(s.t.Context(), old))
	s.notify(old, true)
	l := testLedger(node)
	l.UID = old.UID + "-again"
	s.must(s.api.Create(s.t.Context(), l))
	status := *old.Status.DeepCopy()
	// Versions of an API server go on across objects; those of this one do not.
	for older := true; older; {
		l.Status = status
		s.must(s.api.Status().Update(s.t.Context(), l))
		c, err := resourceversion.CompareResourceVersion(l.ResourceVersion, old.ResourceVersion)
		s.must(err)
		older = c <= 0
	}
	s.notify(l, false)
}

// setStatus is a node agent that says something else of its node.
func (s *stage) setStatus(node string, edit func(*v1alpha1.SliceLedgerStatus)) {
	s.t.Helper()
	l := s.ledger(node)
	edit(&l.Status)
	s.must(s.api.Status().Update(s.t.Context(), l))
	s.notify(l, false)
}

// devicesOf are the devices that the ledger grants to the pod.
func (s *stage) devicesOf(node string, pod types.UID) []string {
	var on []string
	for _, d := range s.ledger(node).Spec.Devices {
		if slices.ContainsFunc(d.Slices, func(sl v1alpha1.Slice) bool { return sl.Pod == pod }) {
			on = append(on, d.UUID)
		}
	}
	return on
}

// Invariant 1: what runs keeps its device, although the ledger lost its slices
// and the pod is being deleted, or was deleted by force.
func TestWhatRunsKeepsItsDevice(t *testing.T) {
	tests := []struct {
		name      string
		lose      func(*stage, string)
		terminate func(*stage, *corev1.Pod)
		comesBack bool
	}{
		{"terminating, edited", (*stage).lose, (*stage).terminate, true},
		{"terminating, recreated", (*stage).recreate, (*stage).terminate, true},
		{"forced, edited", (*stage).lose, (*stage).force, false},
		{"forced, recreated", (*stage).recreate, (*stage).force, false},
	}
	for _, tt := range tests {
		for _, lostFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, lost first %v", tt.name, lostFirst), func(t *testing.T) {
				s := newStage(t, 1)
				s.add("p", 80, 800, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/held"} })
				s.work()
				s.bind()
				s.work()
				s.setStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
					st.Slices = []v1alpha1.SliceStatus{{Pod: "p", Ctr: "c", UUID: "GPU-n0-0", Container: "1", Mode: v1alpha1.ModeLimiter}}
				})
				s.work()
				if lostFirst {
					tt.lose(s, "n0")
					tt.terminate(s, s.get("p"))
				} else {
					tt.terminate(s, s.get("p"))
					tt.lose(s, "n0")
				}
				s.add("q", 80, 800)
				s.add("r", 80, 800)
				for len(s.watch) > 0 {
					s.read()
				}
				// q comes before the ledger is looked at.
				slices.SortStableFunc(s.queue.due, func(a, b item) int { return len(a.node) - len(b.node) })
				s.work()
				if on := append(s.devicesOf("n0", "q"), s.devicesOf("n0", "r")...); !slices.Equal(on, []string{"GPU-n0-1"}) {
					t.Fatalf("Invariant 1: q and r are granted %v, p runs on GPU-n0-0", on)
				}
				if back := len(s.devicesOf("n0", "p")) > 0; back != tt.comesBack {
					t.Errorf("p's slices came back: %v, want %v", back, tt.comesBack)
				}
				// Invariant 6: once the node has seen it gone, its device is free.
				s.setStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Slices, st.Released = nil, []types.UID{"p"} })
				if p := s.get("p"); p != nil {
					s.force(p)
				}
				s.work()
				if gated(s.get("q")) || gated(s.get("r")) {
					t.Error("Invariant 6: the device of a pod that is gone stays closed")
				}
			})
		}
	}
}

// A pod that was looked at while a node's lost slices were not back yet gets what
// is left on the node as soon as they are.
func TestWokenWhenLostGrantsAreBack(t *testing.T) {
	s := newStage(t, 1)
	s.add("p", 80, 800)
	s.work()
	s.lose("n0")
	s.add("q", 80, 800)
	for len(s.watch) > 0 {
		s.read()
	}
	// q comes before the ledger is looked at.
	slices.SortStableFunc(s.queue.due, func(a, b item) int { return len(a.node) - len(b.node) })
	s.work()
	if gated(s.get("q")) {
		t.Error("q still waits")
	}
}

// Invariant 1: slices come back where the containers run, not where the pod was
// placed at first, and on a device that is ill as well.
func TestLostGrantsComeBackWhereTheyRun(t *testing.T) {
	s := newStage(t, 1)
	s.add("p", 80, 800)
	s.work()
	s.bind()
	s.setStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
		st.Devices[1].Healthy = false
		st.Slices = []v1alpha1.SliceStatus{{Pod: "p", Ctr: "c", UUID: "GPU-n0-1", Container: "1", Mode: v1alpha1.ModeLimiter}}
	})
	s.lose("n0")
	s.work()
	if on := s.devicesOf("n0", "p"); !slices.Equal(on, []string{"GPU-n0-1"}) {
		t.Errorf("Invariant 1: booked on %v, runs on GPU-n0-1", on)
	}
}

// terminate is a user who deletes a pod that goes on for its grace period.
func (s *stage) terminate(p *corev1.Pod) {
	s.t.Helper()
	s.must(s.api.Delete(s.t.Context(), p))
	s.notify(s.get(p.Name), false)
}

// force is a user who deletes a pod without waiting for its containers.
func (s *stage) force(p *corev1.Pod) {
	s.t.Helper()
	p.Finalizers = nil
	s.must(s.api.Update(s.t.Context(), p))
	if p.DeletionTimestamp == nil {
		s.must(s.api.Delete(s.t.Context(), p))
	}
	s.notify(p, true)
}
