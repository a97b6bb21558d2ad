// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// mayMove has a controller make the pod again, and allows that it is moved.
func mayMove(p *corev1.Pod) {
	p.Labels = map[string]string{v1alpha1.LabelMovable: v1alpha1.LabelMovableTrue}
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs-" + p.Name, UID: types.UID("rs-" + p.Name), Controller: ptr.To(true)}}
}

// newMoves is a fixture in which pods are moved for one that has waited for a minute.
func newMoves(t *testing.T, nodes ...string) *fixture {
	f := newFixture(t, nodes...)
	f.defragment = Defragment{After: time.Minute, MaxPods: 2, PerHour: 3}
	f.clock.SetTime(time.Unix(10_000, 0))
	return f
}

// moves looks for pods to move for a waiter, and returns who is evicted since the last look.
func (f *fixture) moves(w Waiter) []string {
	f.t.Helper()
	f.evicted = nil
	if err := f.Defragment(f.t.Context(), w, func() { f.asked++ }); err != nil {
		f.t.Fatal(err)
	}
	return f.evicted
}

// place is where the new place of a pod is kept, empty for nowhere.
func (f *fixture) place(pod string) string {
	r := f.reservations.Of(queue.Item{Pod: types.NamespacedName{Namespace: "ns", Name: pod}})
	if r == nil || r.Kind != reservation.Move {
		return ""
	}
	return r.Plans[0].Grants[0].UUID
}

// ends has an evicted pod begin to end.
func (f *fixture) ends(p *corev1.Pod) {
	p = p.DeepCopy()
	p.DeletionTimestamp = &metav1.Time{Time: f.clock.Now().Add(30 * time.Second)}
	f.set(p)
}

// Who is moved for a pod that wants 60 % of a device, where each of three has less.
func TestDefragment(t *testing.T) {
	for name, tt := range map[string]struct {
		// edits are of the pod a, which has 50 % of n's device 0 and has to move to m.
		edits []func(*corev1.Pod)
		more  func(f *fixture, waiter *corev1.Pod)
		want  string // the new place of a
	}{
		"to where it fits":         {[]func(*corev1.Pod){mayMove}, nil, "GPU-m-0"},
		"of the same priority":     {[]func(*corev1.Pod){mayMove, objects.Priority(10)}, nil, "GPU-m-0"},
		"not of a higher priority": {[]func(*corev1.Pod){mayMove, objects.Priority(11)}, nil, ""},
		"not without the label":    {[]func(*corev1.Pod){mayMove, func(p *corev1.Pod) { p.Labels = nil }}, nil, ""},
		"not without a controller": {[]func(*corev1.Pod){mayMove, func(p *corev1.Pod) { p.OwnerReferences = nil }}, nil, ""},
		"not of a gang": {[]func(*corev1.Pod){mayMove, func(p *corev1.Pod) {
			p.Labels[podrequest.LabelKueue], p.Annotations[podrequest.AnnotationKueueTotal] = "g", "1"
		}}, nil, ""},
		"not where the scheduler refuses it": {[]func(*corev1.Pod){mayMove, func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n"}
		}}, nil, ""},
		"not where its CPU is short": {[]func(*corev1.Pod){mayMove, objects.CPU("10")}, func(f *fixture, _ *corev1.Pod) { f.other("m", 1, "60") }, ""},
		"not where a budget keeps it": {[]func(*corev1.Pod){mayMove}, func(f *fixture, _ *corev1.Pod) {
			f.refuse = func(string, bool) error { return apierrors.NewTooManyRequests("the budget is used up", 10) }
		}, ""},
		"not where its place is promised": {[]func(*corev1.Pod){mayMove}, func(f *fixture, _ *corev1.Pod) {
			other := f.waiter(holder("other", 45, 10))
			room, _ := f.known.Index.On("m")
			plan, _ := placement.Fit(other.Pods[0].Demand, room)
			f.reservations.Put(&reservation.Reservation{Kind: reservation.Head, Owner: other.Item, Pods: []*corev1.Pod{other.Pods[0].Pod}, Priority: f.known.Priorities.Of(other.Pods[0].Pod), Plans: []placement.Plan{plan}, Made: f.clock.Now()})
		}, ""},
		"not before its time": {[]func(*corev1.Pod){mayMove}, func(f *fixture, waiter *corev1.Pod) {
			waiter.CreationTimestamp = metav1.NewTime(f.clock.Now().Add(-59 * time.Second))
		}, ""},
		"off":                      {[]func(*corev1.Pod){mayMove}, func(f *fixture, _ *corev1.Pod) { f.defragment.After = 0 }, ""},
		"none is left in the hour": {[]func(*corev1.Pod){mayMove}, func(f *fixture, _ *corev1.Pod) { f.moved = slices.Repeat([]time.Time{f.clock.Now()}, 3) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newMoves(t, "n", "m")
			a := holder("a", 50, 0)
			for _, edit := range tt.edits {
				edit(a)
			}
			f.run(a, "n", 0)
			f.run(holder("b", 60, 0), "n", 1)
			f.run(holder("c", 50, 0), "m", 0)
			f.run(holder("d", 60, 0), "m", 1)
			p := holder("p", 60, 10)
			p.CreationTimestamp = metav1.NewTime(f.clock.Now().Add(-time.Hour))
			if tt.more != nil {
				tt.more(f, p)
			}
			w := f.waiter(p)
			got := f.moves(w)
			if f.place("a") != tt.want || (len(got) == 1) != (tt.want != "") || (f.reservations.Of(w.Item) != nil) != (tt.want != "") {
				t.Errorf("evicted %v, new place %q, reserved %q; want %q", got, f.place("a"), f.reserved(w), tt.want)
			}
			if tt.want != "" && (f.reserved(w) != "defragment[GPU-n-0] [a]" || !slices.Equal(f.dry, []string{"a"})) {
				t.Errorf("reserved %s after dry runs for %v", f.reserved(w), f.dry)
			}
		})
	}
}

// Two are moved one after the other, each once the one before has left; no more than may be are.
func TestDefragment_OneAtATime(t *testing.T) {
	for most := range 3 {
		f := newMoves(t, "n", "m")
		f.defragment.MaxPods = most
		a, b := f.run(holder("a", 40, 0, mayMove), "n", 0), f.run(holder("b", 40, 0, mayMove), "n", 0)
		f.run(holder("c", 60, 0), "n", 1)
		f.run(holder("d", 50, 0), "m", 0)
		f.run(holder("e", 50, 0), "m", 1)
		w := f.waiter(holder("p", 100, 10))
		got := f.moves(w)
		if most < 2 {
			if len(got) > 0 || f.reserved(w) != "" {
				t.Errorf("at most %d: evicted %v, reserved %s", most, got, f.reserved(w))
			}
			continue
		}
		if len(got) != 1 || f.place("a") == "" || f.place("b") == "" || f.place("a") == f.place("b") || f.place("a") == "GPU-n-0" {
			t.Fatalf("evicted %v, new places %q and %q", got, f.place("a"), f.place("b"))
		}
		first, second := a, b
		if got[0] == "b" {
			first, second = b, a
		}
		f.clock.Step(EvictAgain)
		f.ends(first)
		if got := f.moves(w); len(got) > 0 {
			t.Errorf("evicted %v while %s leaves", got, first.Name)
		}
		f.gone(first, "n")
		if got := f.moves(w); !slices.Equal(got, []string{second.Name}) {
			t.Errorf("evicted %v once %s has left, want %s", got, first.Name, second.Name)
		}
		if len(f.moved) != 2 {
			t.Errorf("%d moves are counted", len(f.moved))
		}
	}
}

// Without its new place nobody is evicted, however far things are; what was reserved for nobody
// ends.
func TestDefragment_PlaceIsLost(t *testing.T) {
	f := newMoves(t, "n", "m")
	a, b := f.run(holder("a", 40, 0, mayMove), "n", 0), f.run(holder("b", 40, 0, mayMove), "n", 0)
	f.run(holder("c", 60, 0), "n", 1)
	f.run(holder("d", 50, 0), "m", 0)
	f.run(holder("e", 50, 0), "m", 1)
	w := f.waiter(holder("p", 100, 10))
	got := f.moves(w)
	if len(got) != 1 {
		t.Fatalf("evicted %v", got)
	}
	first, second := a, b
	if got[0] == "b" {
		first, second = b, a
	}
	f.clock.Step(EvictAgain)
	f.gone(first, "n")
	lost := f.place(second.Name)
	f.change(strings.Split(lost, "-")[1], func(l *v1alpha1.SliceLedger) {
		for i := range l.Status.Devices {
			if l.Status.Devices[i].UUID == lost {
				l.Status.Devices[i].Healthy = false
			}
		}
	})
	f.newEvents()
	if got := f.moves(w); len(got) > 0 || f.reserved(w) != "" {
		t.Errorf("evicted %v, reserved %s", got, f.reserved(w))
	}
	if got := f.newEvents(); !strings.Contains(got, notify.ReasonUnreserved) || !strings.Contains(got, "no new place") {
		t.Error(got)
	}
	f.reservations.Review()
	if f.place(first.Name) == "" || f.place(second.Name) != "" {
		t.Errorf("kept for %s: %q, for %s, which stays: %q", first.Name, f.place(first.Name), second.Name, f.place(second.Name))
	}
}

// The new place is kept for what the controller of the moved pod makes, for some minutes.
func TestDefragment_PlaceIsKept(t *testing.T) {
	f := newMoves(t, "n", "m")
	a := f.run(holder("a", 50, 0, mayMove), "n", 0)
	f.run(holder("b", 60, 0), "n", 1)
	f.run(holder("c", 50, 0), "m", 0)
	f.run(holder("d", 60, 0), "m", 1)
	w := f.waiter(holder("p", 60, 10))
	if got := f.moves(w); len(got) != 1 {
		t.Fatalf("evicted %v", got)
	}
	told := f.newEvents()
	if !strings.Contains(told, notify.ReasonDefragmented) || !strings.Contains(told, "kept on node m GPU 0") {
		t.Error(told)
	}
	f.clock.Step(EvictAgain)
	f.gone(a, "n")
	f.reservations.Review()
	again := holder("a-again", 50, 0, mayMove)
	again.OwnerReferences = a.OwnerReferences
	elsewhere := again.DeepCopy()
	elsewhere.Namespace = "other"
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"what its controller makes":         {again, true},
		"another controller's":              {holder("x", 50, 0, mayMove), false},
		"nobody's":                          {holder("y", 50, 0), false},
		"the same UID in another namespace": {elsewhere, false},
	} {
		against, _ := f.reservations.Against(reservation.Asker{Item: queue.Item{Pod: podstate.KeyOf(tt.pod)}, Pods: []*corev1.Pod{tt.pod}, Priority: f.known.Priorities.Of(tt.pod)})
		if hidden := slices.ContainsFunc(against, func(r *reservation.Reservation) bool { return r.Kind == reservation.Move }); hidden == tt.want {
			t.Errorf("%s: sees the place: %v", name, !hidden)
		}
	}
	f.clock.Step(PlaceKept - time.Second)
	if f.reservations.Review(); f.place("a") == "" {
		t.Error("it is not kept until its time")
	}
	f.clock.Step(2 * time.Minute)
	if f.reservations.Review(); f.place("a") != "" {
		t.Error("it is kept for ever")
	}
}

// Once it is taken, the place is nobody's any more.
func TestDefragment_PlaceIsTaken(t *testing.T) {
	f := newMoves(t, "n", "m")
	a := f.run(holder("a", 50, 0, mayMove), "n", 0)
	f.run(holder("b", 60, 0), "n", 1)
	f.run(holder("c", 50, 0), "m", 0)
	f.run(holder("d", 60, 0), "m", 1)
	f.moves(f.waiter(holder("p", 60, 10)))
	f.gone(a, "n")
	f.run(holder("a-again", 50, 0), "m", 0)
	if f.reservations.Review(); f.place("a") != "" {
		t.Errorf("kept at %s", f.place("a"))
	}
}

// A pod has all that it asks for elsewhere as it was before it was placed.
func TestUnplaced(t *testing.T) {
	f := newFixture(t, "n")
	p := holder("p", 10, 0, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b"} })
	was := p.DeepCopy()
	was.Spec.SchedulingGates = nil
	placed := f.run(p, "n", 0)
	placed.Spec.Affinity = podstate.PinTo(nil, "n")
	got := podstate.Unplaced(placed)
	if got.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		t.Errorf("pinned: %+v", got.Spec.Affinity)
	}
	if got.Spec.Affinity = nil; !equality.Semantic.DeepEqual(got.Spec, was.Spec) || got.Annotations[v1alpha1.AnnotationPlacement] != "" {
		t.Errorf("%v\nwas %v", got.Spec, was.Spec)
	}
}
