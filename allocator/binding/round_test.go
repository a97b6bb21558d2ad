// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// free is what the next decision sees free of a node's first device.
func (f *fixture) free(node string) v1alpha1.Percent {
	f.t.Helper()
	room, _ := f.Cache.Index.On(node)
	return room.Device("GPU-" + node + "-0").FreeCore
}

// grant decides on a pod that the cache has.
func (f *fixture) grant(r *Round, name, node string) *Pending {
	f.t.Helper()
	p := f.Cache.Current(objects.Halves(name, "c"))
	r.Begin(p)
	c := f.choice(p, node)
	pending, err := r.Grant(&c)
	f.must(err)
	return pending
}

// A grant counts from the decision on, and is written with all others of its ledger at once.
func TestRound(t *testing.T) {
	f := newFixture(t, objects.ReadyLedger("n"), objects.Halves("p", "c"), objects.Halves("q", "c"))
	r := f.NewRound()
	pending := []*Pending{f.grant(r, "p", "n"), nil, f.grant(r, "q", "n")}
	if f.free("n") != 0 || f.updates != 0 {
		t.Errorf("before the write %d free, %d writes", f.free("n"), f.updates)
	}
	r.Finish(t.Context(), pending)
	r.End()
	if f.updates != 1 || f.free("n") != 0 {
		t.Errorf("%d writes, then %d free", f.updates, f.free("n"))
	}
	for _, i := range []int{0, 2} {
		if p := f.pod(pending[i].Pod.Name); pending[i].Err != nil || podstate.Gated(p) {
			t.Errorf("%s: %v, gated: %v", p.Name, pending[i].Err, podstate.Gated(p))
		}
	}
}

// What is not written of a round is free again, and what is written is no worse for it.
func TestFailedDraft(t *testing.T) {
	tests := []struct {
		name  string
		fail  func(*fixture)
		again bool
		free  v1alpha1.Percent
	}{
		{"refused", func(f *fixture) { f.answer = errInternal }, false, v1alpha1.WholeGPU},
		{"another has written", func(f *fixture) { f.behind(objects.Grant(f.ledger("n"), objects.Halves("other", "c"), on{"c": 0})) }, true, 50},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, objects.ReadyLedger("n"), objects.Halves("p", "c"), objects.Halves("q", "c"))
			r := f.NewRound()
			p := f.grant(r, "p", "n")
			tt.fail(f)
			r.Finish(t.Context(), []*Pending{p})
			r.End()
			if p.Err == nil || errors.Is(p.Err, queue.ErrAgain) != tt.again || !podstate.Gated(f.pod("p")) {
				t.Errorf("error %v, gated: %v", p.Err, podstate.Gated(f.pod("p")))
			}
			if f.free("n") != tt.free {
				t.Errorf("%d free, want %d", f.free("n"), tt.free)
			}
			f.answer = nil
			r = f.NewRound()
			q := f.grant(r, "q", "n")
			r.Finish(t.Context(), []*Pending{q})
			if r.End(); q.Err != nil || podstate.Gated(f.pod("q")) {
				t.Errorf("the next one: %v, gated: %v", q.Err, podstate.Gated(f.pod("q")))
			}
		})
	}
}

// A decision on a version that is not the newest any more is made again.
func TestGrantOnOldVersion(t *testing.T) {
	f := newFixture(t, objects.ReadyLedger("n"), objects.Halves("p", "c"))
	c := f.choice(f.Cache.Current(objects.Halves("p", "c")), "n")
	f.behind(objects.Grant(f.ledger("n"), objects.Halves("other", "c"), on{"c": 0}))
	f.Handlers.SetLedger(f.ledger("n"))
	r := f.NewRound()
	if p, err := r.Grant(&c); p != nil || !errors.Is(err, queue.ErrAgain) {
		t.Errorf("granted %v, error %v", p, err)
	}
	if r.Finish(t.Context(), nil); f.updates != 0 || f.free("n") != 50 {
		t.Errorf("%d writes, %d free", f.updates, f.free("n"))
	}
}

// A pod that is deleted while it is placed is known to have never run, until nothing of it is
// left.
func TestDeletedInRound(t *testing.T) {
	for _, written := range []bool{false, true} {
		f := newFixture(t, objects.ReadyLedger("n"), objects.Halves("p", "c"))
		r := f.NewRound()
		p := f.grant(r, "p", "n")
		if !written {
			f.answer = errInternal
		}
		f.must(f.api.Delete(t.Context(), f.pod("p")))
		f.Handlers.DeletePod(p.Pod, true)
		r.Finish(t.Context(), []*Pending{p})
		r.End()
		if got := f.Cache.DeletedUnbound("p"); got != written {
			t.Errorf("written: %v, noted: %v", written, got)
		}
		if due := f.work.Due[queue.Item{Node: "n"}]; written && !due {
			t.Errorf("its slices are nobody's: looked at are %v", f.work.Due)
		}
	}
}

// Each write of a ledger says what idle slices have beyond their device: no more once a slice has gone.
func TestWrite_WhenMemoryIsLent(t *testing.T) {
	f := newFixture(t, objects.ReadyLedger("n"))
	l := f.ledger("n")
	l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: l.Status.Devices[0].UUID, Core: 100, Mem: objects.DeviceMiB, Slices: []v1alpha1.Slice{
		{Pod: "a", Owner: "ns/a", Ctr: "c", Core: 10, Mem: 900}, {Pod: "i", Owner: "ns/i", Ctr: "c", Idle: 10, Mem: 150}}}}
	f.must(f.Write(t.Context(), l))
	if lent := f.ledger("n").Spec.Devices[0].Lent; lent != 50 {
		t.Errorf("%d MiB are lent, want 50", lent)
	}
	f.must(f.Release(t.Context(), f.ledger("n"), func(uid types.UID) bool { return uid == "i" }))
	if d := f.ledger("n").Spec.Devices[0]; d.Lent != 0 || len(d.Slices) != 1 {
		t.Errorf("%+v", d)
	}
}
