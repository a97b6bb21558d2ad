// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// A pod gets what its ledger has for it, and the pin beside the affinity that it has, of which the
// cache does not have all.
func TestUngate(t *testing.T) {
	p := objects.Halves("p", "c")
	objects.Near("x")(p)
	p.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.WeightedPodAffinityTerm{
		{Weight: 1, PodAffinityTerm: p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]}}
	p.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1}}}
	want := podstate.PinTo(p.Spec.Affinity.DeepCopy(), "n")
	f := newFixture(t, objects.Grant(objects.ReadyLedger("n"), p, on{"c": 1}), p)
	trimmed, err := podstate.Trim(f.pod("p"))
	f.must(err)
	f.Handlers.SetPod(trimmed.(*corev1.Pod))
	f.must(f.Ungate(t.Context(), f.Cache.Current(p), "n"))
	live := f.pod("p")
	placed, err := v1alpha1.ParsePlacement(live.Annotations[v1alpha1.AnnotationPlacement])
	if err != nil || podstate.Gated(live) || placed.Node != "n" || placed.Containers["c"].Devices[0].UUID != "GPU-n-1" {
		t.Errorf("gated: %v, placement %+v, %v", podstate.Gated(live), placed, err)
	}
	if got := live.Spec.Affinity; !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("affinity %v, want %v", got, want)
	}
	if podstate.TargetNode(f.Cache.Current(p)) != "n" {
		t.Error("the cache does not know where the pod is")
	}
}

// A pod that is ungated is looked at once more, should no scheduler bind it: also where the answer
// was lost and the next try is a conflict.
func TestUngatedIsLookedAtAgain(t *testing.T) {
	p := objects.Halves("p", "c")
	f := newFixture(t, objects.Grant(objects.ReadyLedger("n"), p, on{"c": 1}), p)
	decided := f.Cache.Current(p)
	for _, when := range []string{"ungated", "ungated before"} {
		f.work.Clear()
		f.must(f.Ungate(t.Context(), decided, "n"))
		if got := f.work.Later[queue.Item{Pod: podstate.KeyOf(p)}]; got != BindPatience {
			t.Errorf("%s: looked at in %v", when, got)
		}
	}
}

// A pod is not ungated in another version than was decided on, nor with what its ledger does
// not have.
func TestUngateNothingElse(t *testing.T) {
	tests := []struct {
		name string
		// setup changes what there is after the decision.
		setup func(*fixture)
		// again is whether it is decided again, ledger whether the ledger is looked at.
		again, ledger bool
		// gated is what the API server says of it.
		gated bool
	}{
		{"changed since", func(f *fixture) {
			p := f.pod("p")
			p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
			f.behind(p)
		}, true, false, true},
		{"deleted", func(f *fixture) { f.must(f.api.Delete(t.Context(), f.pod("p"))) }, false, true, false},
		{"another of its name", func(f *fixture) {
			f.must(f.api.Delete(t.Context(), f.pod("p")))
			p := objects.Halves("p", "c")
			p.UID = "another"
			f.must(f.api.Create(t.Context(), p))
			f.behind(f.pod("p")) // versions of an API server go on
		}, false, true, true},
		{"ungated by another leader", func(f *fixture) { f.behind(objects.Place(f.pod("p"), objects.ReadyLedger("m"), on{"c": 0})) }, false, true, false},
		{"no ledger", func(f *fixture) { f.Handlers.DeleteLedger(f.known("n")) }, true, false, true},
		{"slices taken back", func(f *fixture) { f.edit(func(l *v1alpha1.SliceLedger) { l.Spec.Devices = nil }) }, true, false, true},
		{"slices held", func(f *fixture) {
			f.edit(func(l *v1alpha1.SliceLedger) { grants.Hold(l, "gang", f.clock.Now().Add(time.Hour), "p") })
		}, true, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := objects.Halves("p", "c")
			f := newFixture(t, objects.Grant(objects.ReadyLedger("n"), p, on{"c": 1}), p)
			decided := f.Cache.Current(p)
			tt.setup(f)
			f.work.Clear()
			if err := f.Ungate(t.Context(), decided, "n"); errors.Is(err, queue.ErrAgain) != tt.again || err != nil && !tt.again {
				t.Errorf("error %v, again: %v", err, tt.again)
			}
			if f.work.Due[queue.Item{Node: "n"}] != tt.ledger {
				t.Errorf("looked at again: %v; the ledger among them: want %v", f.work.Due, tt.ledger)
			}
			live := &corev1.Pod{}
			if err := f.api.Get(t.Context(), client.ObjectKeyFromObject(p), live); podstate.Gated(live) != tt.gated {
				t.Errorf("gated: %v, want %v (%v)", podstate.Gated(live), tt.gated, err)
			}
			if known := f.Cache.Current(p); live.UID == p.UID && known.ResourceVersion != live.ResourceVersion {
				t.Error("the cache has an older version than the API server")
			}
		})
	}
}

// edit changes ledger n as another leader does, and the watch shows it.
func (f *fixture) edit(change func(*v1alpha1.SliceLedger)) {
	l := f.ledger("n")
	change(l)
	f.behind(l)
	f.Handlers.SetLedger(l)
}

// Where a pod was placed is an event only for one whose owner was told that it waits.
func TestPlacedIsToldWhoWaited(t *testing.T) {
	for _, waited := range []bool{false, true} {
		p := objects.Halves("p", "c")
		f := newFixture(t, objects.Grant(objects.ReadyLedger("n"), p, on{"c": 0}), p)
		events := record.NewFakeRecorder(10)
		f.Notify.Events = events
		if waited {
			f.Queue.MarkUnschedulable([]*corev1.Pod{f.Cache.Current(p)}, false, notify.Why{Key: "full", Text: "no GPU"})
			<-events.Events
		}
		f.must(f.Ungate(t.Context(), f.Cache.Current(p), "n"))
		if sent := len(events.Events) > 0; sent != waited {
			t.Errorf("waited: %v, sent where it is: %v", waited, sent)
		}
	}
}

// A pod with a slice of MIG waits until its node shows the instance, and for PrepareGrace at
// most.
func TestPreparing(t *testing.T) {
	place := v1alpha1.MIGPlace{Profile: 19, Start: 0, Size: 1}
	setup := func(t *testing.T) (*fixture, *corev1.Pod) {
		p := objects.Halves("p", "c")
		l := objects.Grant(objects.ReadyLedger("n"), p, on{"c": 0})
		l.Spec.Devices[0].Slices[0].Mode, l.Spec.Devices[0].Slices[0].MIG = v1alpha1.ModeMIG, &place
		f := newFixture(t, l, p)
		f.must(f.Ungate(t.Context(), f.Cache.Current(p), "n"))
		if left := f.work.Later[queue.Item{Pod: podstate.KeyOf(p)}]; !podstate.Gated(f.pod("p")) || left != PrepareGrace {
			t.Fatalf("gated: %v, looked at again after %v", podstate.Gated(f.pod("p")), left)
		}
		return f, f.Cache.Current(p)
	}
	t.Run("too long", func(t *testing.T) {
		f, p := setup(t)
		f.work.Clear()
		f.clock.Step(PrepareGrace - time.Second)
		f.must(f.Ungate(t.Context(), p, "n"))
		if left := f.work.Later[queue.Item{Pod: podstate.KeyOf(p)}]; !podstate.Gated(f.pod("p")) || left != time.Second {
			t.Fatalf("before its time, gated: %v, looked at again after %v", podstate.Gated(f.pod("p")), left)
		}
		f.clock.Step(time.Second)
		if f.must(f.Ungate(t.Context(), p, "n")); podstate.Gated(f.pod("p")) {
			t.Error("gated after its time")
		}
	})
	t.Run("prepared", func(t *testing.T) {
		f, p := setup(t)
		l := f.ledger("n")
		l.Status.Devices[0].Instances = []v1alpha1.MIGInstance{{MIGPlace: place, UUID: "MIG-1"}}
		f.must(f.api.Status().Update(t.Context(), l))
		f.Handlers.SetLedger(l)
		if f.must(f.Ungate(t.Context(), p, "n")); podstate.Gated(f.pod("p")) {
			t.Error("gated although its instance is there")
		}
	})
}
