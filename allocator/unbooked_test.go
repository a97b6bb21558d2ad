// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// Invariant 1: what runs keeps its device, although the ledger lost its slices
// and the pod is being deleted, or was deleted by force.
func TestWhatRunsKeepsItsDevice(t *testing.T) {
	tests := []struct {
		name      string
		lose      func(*stage, string)
		terminate func(s *stage, pod string)
		comesBack bool
	}{
		{"terminating, edited", (*stage).lose, (*stage).delete, true},
		{"terminating, recreated", (*stage).remake, (*stage).delete, true},
		{"forced, edited", (*stage).lose, deletedByForce, false},
		{"forced, recreated", (*stage).remake, deletedByForce, false},
	}
	for _, tt := range tests {
		for _, lostFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, lost first %v", tt.name, lostFirst), func(t *testing.T) {
				s := newStage(t, 1)
				s.add("p", 80, 800, finalized)
				s.work()
				s.bind()
				s.work()
				s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
					st.Slices = []v1alpha1.SliceStatus{{Pod: "p", Ctr: "c", UUID: "GPU-n0-0", Container: "1", Mode: v1alpha1.ModeLimiter}}
				})
				s.work()
				if lostFirst {
					tt.lose(s, "n0")
					tt.terminate(s, "p")
				} else {
					tt.terminate(s, "p")
					tt.lose(s, "n0")
				}
				s.add("q", 80, 800)
				s.add("r", 80, 800)
				s.readAll()
				// q comes before the ledger is looked at.
				slices.SortStableFunc(s.queue.due, func(a, b queue.Item) int { return len(a.Node) - len(b.Node) })
				s.work()
				if on := append(s.devicesOf("n0", "q"), s.devicesOf("n0", "r")...); !slices.Equal(on, []string{"GPU-n0-1"}) {
					t.Fatalf("Invariant 1: q and r are granted %v, p runs on GPU-n0-0", on)
				}
				if back := len(s.devicesOf("n0", "p")) > 0; back != tt.comesBack {
					t.Errorf("p's slices came back: %v, want %v", back, tt.comesBack)
				}
				// Invariant 6: once the node has seen it gone, its device is free.
				s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Slices, st.Released = nil, []types.UID{"p"} })
				if p := s.get("p"); p != nil {
					s.vanish(p)
				}
				s.work()
				if podstate.Gated(s.get("q")) || podstate.Gated(s.get("r")) {
					t.Error("Invariant 6: the device of a pod that is gone stays closed")
				}
			})
		}
	}
}

// Invariants 1 and 6: a container that runs elsewhere than it is booked is seen
// although another one of its pod is booked there.
func TestGrantsFollowEachContainer(t *testing.T) {
	s := newStage(t, 1)
	p := objects.Pod("p", map[string]v1alpha1.Share{"a": objects.Share(30, 300), "b": objects.Share(30, 300)})
	p.Annotations[v1alpha1.AnnotationPolicy] = "spread"
	s.create(p)
	s.work()
	s.bind()
	s.work()
	on := func(ctr string) string { return slicesOf(s.ledger("n0"), container{"p", ctr})[0].uuid }
	if on("a") == on("b") {
		t.Fatal("spread put both on one device")
	}
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
		for _, ctr := range []string{"a", "b"} {
			st.Slices = append(st.Slices, v1alpha1.SliceStatus{Pod: "p", Ctr: ctr, UUID: on("a"), Container: ctr, Mode: v1alpha1.ModeLimiter})
		}
	})
	s.work()
	if on("a") != on("b") {
		t.Errorf("Invariant 6: b runs on %s and is booked on %s", on("a"), on("b"))
	}
}

// A pod that was looked at while a node's lost slices were not back yet gets what
// is left on the node as soon as they are.
func TestPod_WhenLostSlicesAreRestored_IsPlaced(t *testing.T) {
	s := newStage(t, 1)
	s.add("p", 80, 800)
	s.work()
	s.lose("n0")
	s.add("q", 80, 800)
	s.readAll()
	// q comes before the ledger is looked at.
	slices.SortStableFunc(s.queue.due, func(a, b queue.Item) int { return len(a.Node) - len(b.Node) })
	s.work()
	s.expect("q:*")
}

// remake makes the whole ledger again, as its node does after a deletion.
func (s *stage) remake(node string) {
	s.t.Helper()
	status := s.ledger(node).Status
	s.destroy(node)
	s.recreate(node)
	s.setLedgerStatus(node, func(st *v1alpha1.SliceLedgerStatus) { *st = status })
}

func deletedByForce(s *stage, pod string) { s.vanish(s.get(pod)) }
