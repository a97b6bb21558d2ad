// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// remake makes the whole ledger anew, as its node does after a deletion.
func (s *stage) remake(node string) {
	s.t.Helper()
	status := s.ledger(node).Status
	s.destroy(node)
	s.recreate(node)
	s.setLedgerStatus(node, func(st *v1alpha1.SliceLedgerStatus) { *st = status })
}

// setLedgerStatus is a node agent that says something else of its node.
func (s *stage) setLedgerStatus(node string, edit func(*v1alpha1.SliceLedgerStatus)) {
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
		{"terminating, recreated", (*stage).remake, (*stage).terminate, true},
		{"forced, edited", (*stage).lose, (*stage).vanish, false},
		{"forced, recreated", (*stage).remake, (*stage).vanish, false},
	}
	for _, tt := range tests {
		for _, lostFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, lost first %v", tt.name, lostFirst), func(t *testing.T) {
				s := newStage(t, 1)
				s.add("p", 80, 800, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/held"} })
				s.work()
				s.bind()
				s.work()
				s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
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

// Invariant 6: a device that was ill recovers, and a container starts on it, while
// the pod's slices are being moved off it: they come back to where it runs.
func TestGrantsFollowWhatRuns(t *testing.T) {
	s := newStage(t, 1)
	s.add("p", 50, 500)
	s.work()
	s.bind()
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Devices[0].Healthy = false })
	p := s.get("p")
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: waitingFor("CreateContainerError")}}
	s.setStatus(p)
	s.work()
	if on := s.devicesOf("n0", "p"); !slices.Equal(on, []string{"GPU-n0-1"}) {
		t.Fatalf("booked on %v, want the device that is well", on)
	}
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
		st.Devices[0].Healthy = true
		st.Slices = []v1alpha1.SliceStatus{{Pod: "p", Ctr: "c", UUID: "GPU-n0-0", Container: "1", Mode: v1alpha1.ModeLimiter}}
	})
	s.work()
	if on := s.devicesOf("n0", "p"); !slices.Equal(on, []string{"GPU-n0-0"}) {
		t.Errorf("Invariant 6: booked on %v, runs on GPU-n0-0", on)
	}
}

// Invariants 1 and 6: a container that runs elsewhere than it is booked is seen
// although another one of its pod is booked there.
func TestGrantsFollowEachContainer(t *testing.T) {
	s := newStage(t, 1)
	p := objects.Pod("p", map[string]v1alpha1.Share{"a": objects.Share(30, 300), "b": objects.Share(30, 300)})
	p.UID = "p"
	p.Annotations[v1alpha1.AnnotationPolicy] = "spread"
	s.must(s.api.Create(t.Context(), p))
	s.notify(p, false)
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

// Invariant 1: of two pods without slices, for which there is room for one, the one
// that runs gets them back.
func TestWhatRunsIsBookedFirst(t *testing.T) {
	for _, runs := range []string{"p", "q"} {
		s := newStage(t, 1)
		s.add("p", 60, 600)
		s.work()
		s.bind()
		s.add("q", 60, 600)
		s.work()
		s.bind()
		// Both were placed on the same device at different times.
		q := s.get("q")
		q.Annotations[v1alpha1.AnnotationPlacement] = s.get("p").Annotations[v1alpha1.AnnotationPlacement]
		s.must(s.api.Update(t.Context(), q))
		s.notify(q, false)
		s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
			st.Slices = []v1alpha1.SliceStatus{{Pod: types.UID(runs), Ctr: "c", UUID: "GPU-n0-0", Container: "1", Mode: v1alpha1.ModeLimiter}}
		})
		s.lose("n0")
		s.work()
		if on := s.devicesOf("n0", types.UID(runs)); !slices.Equal(on, []string{"GPU-n0-0"}) {
			t.Errorf("Invariant 1: %s runs on GPU-n0-0 and is booked on %v", runs, on)
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
	slices.SortStableFunc(s.queue.due, func(a, b queue.Item) int { return len(a.Node) - len(b.Node) })
	s.work()
	if podstate.Gated(s.get("q")) {
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
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
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
	s.must(s.remove(p))
}

// Invariant 6: slices that were lost come back although a device that they were on has
// gone from the node since: what runs stays where it is, and what does not is given
// another device, unless it may run where nobody knows yet.
func TestLostGrantsOfADeviceThatIsGone(t *testing.T) {
	gone := func(st *v1alpha1.SliceLedgerStatus, uuid string) {
		st.Devices = slices.DeleteFunc(st.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == uuid })
	}
	for _, tt := range []struct {
		name    string
		running bool
		status  func(st *v1alpha1.SliceLedgerStatus)
		says    bool
		others  v1alpha1.Percent
		beside  v1alpha1.Percent
		back    bool
	}{
		{name: "nothing runs", back: true},
		{name: "the other container runs", running: true, back: true},
		{name: "the container itself runs, by the node's word", running: true, status: func(st *v1alpha1.SliceLedgerStatus) {
			st.Slices = append(st.Slices, v1alpha1.SliceStatus{Pod: "p", Ctr: "b", UUID: "GPU-n0-1", Container: "b", Mode: v1alpha1.ModeLimiter})
		}},
		{name: "the container itself runs, by the pod's word", says: true},
		{name: "the rest is ill", status: func(st *v1alpha1.SliceLedgerStatus) { st.Devices[0].Healthy = false }},
		{name: "no room", others: 50},
		{name: "the room is of another that lost its slices", beside: 50},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStage(t, 1)
			p := objects.Pod("p", map[string]v1alpha1.Share{"a": objects.Share(30, 300), "b": objects.Share(30, 300)})
			p.UID, p.Annotations[v1alpha1.AnnotationPolicy] = "p", "spread"
			s.must(s.api.Create(t.Context(), p))
			s.notify(p, false)
			s.work()
			s.bind()
			if tt.beside > 0 {
				s.add("q", tt.beside, 300, onDevice("GPU-n0-0"))
				s.work()
			}
			if p = s.get("p"); tt.says {
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "b", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
				s.setStatus(p)
			}
			s.work()
			l := s.ledger("n0")
			if on := slicesOf(l, container{"p", "a"}); on[0].uuid != "GPU-n0-0" || slicesOf(l, container{"p", "b"})[0].uuid != "GPU-n0-1" {
				t.Fatalf("spread put a on %+v", on)
			}
			s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
				if gone(st, "GPU-n0-1"); tt.running {
					st.Slices = []v1alpha1.SliceStatus{{Pod: "p", Ctr: "a", UUID: "GPU-n0-0", Container: "a", Mode: v1alpha1.ModeLimiter}}
				}
				if tt.status != nil {
					tt.status(st)
				}
			})
			s.work()
			l = s.ledger("n0")
			l.Spec = v1alpha1.SliceLedgerSpec{}
			if tt.others > 0 {
				s.must(grants.Grant(l, "o", "ns/o", placement.Plan{Grants: []placement.Grant{{Container: "c", UUID: "GPU-n0-0", Core: tt.others, Mem: 1}}}))
			}
			s.must(s.api.Update(t.Context(), l))
			s.notify(l, false)
			s.work()
			var want []string
			if tt.back {
				want = []string{"GPU-n0-0"}
			}
			if on := s.devicesOf("n0", "p"); !slices.Equal(on, want) {
				t.Errorf("Invariant 6: booked on %v, want %v", on, want)
			}
			if on := s.devicesOf("n0", "q"); (len(on) > 0) != (tt.beside > 0) {
				t.Errorf("Invariant 6: the other one is booked on %v", on)
			}
			if told := fmt.Sprint(s.told()); strings.Contains(told, notify.ReasonMoved) != tt.back {
				t.Errorf("told %s", told)
			}
		})
	}
}
