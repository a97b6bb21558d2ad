// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/tides"
	"vernier.dev/vernier/api/servertime"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// The ledger has the tide when it opens, and nothing is written as it ends: the ledger has its end.
func TestTide(t *testing.T) {
	f := newFixture(t, objects.ReadyLedger("n"))
	f.Tides = &tides.Set{
		Now:    func() servertime.Reading { return servertime.Reading{Known: true, Now: f.clock.Now()} },
		Labels: func(string) (map[string]string, bool) { return nil, true },
	}
	// Tests begin at 00:16:40.
	tide := &v1alpha1.Tide{ObjectMeta: metav1.ObjectMeta{Name: "night"}, Spec: v1alpha1.TideSpec{
		Windows: []v1alpha1.TideWindow{{Schedule: "0 1 * * *", Duration: metav1.Duration{Duration: time.Hour}}}, Lend: v1alpha1.TideAmounts{Core: 80, Mem: 70},
	}}
	for _, step := range []struct {
		name      string
		do        func()
		after     time.Duration
		writes    int
		core, mem v1alpha1.Percent
		again     time.Duration
	}{
		{"no tides", func() {}, 0, 0, 100, 100, 0},
		{"one that is shut", func() { f.Tides.Put(tide) }, 0, 1, 0, 0, 43*time.Minute + 20*time.Second},
		{"it opens", func() {}, 43*time.Minute + 20*time.Second, 2, 80, 70, time.Hour},
		{"it ends", func() {}, time.Hour, 2, 0, 0, time.Hour},
		{"it is deleted", func() { f.Tides.Delete("night") }, time.Minute, 3, 100, 100, 0},
	} {
		step.do()
		f.reconcile(step.after)
		again := f.work.Later[queue.Item{Node: "n"}]
		f.reconcile(0)
		if core, mem := f.ledger().Spec.Tide.Allows(f.clock.Now()); f.specs != step.writes || core != step.core || mem != step.mem || again != step.again {
			t.Errorf("%s: %d and %d after %d writes, again after %v; want %+v", step.name, core, mem, f.specs, again, step)
		}
		if known := f.Cache.Index.Ledger("n"); known.ResourceVersion != f.ledger().ResourceVersion {
			t.Errorf("%s: the index has not what was written", step.name)
		}
	}
}

// Where another has written, it is decided again.
func TestTide_WhenChanged_IsTriedAgain(t *testing.T) {
	f := newFixture(t, objects.ReadyLedger("n"))
	f.Tides = &tides.Set{
		Now:    func() servertime.Reading { return servertime.Reading{Known: true, Now: f.clock.Now()} },
		Labels: func(string) (map[string]string, bool) { return nil, true },
	}
	f.Tides.Put(&v1alpha1.Tide{ObjectMeta: metav1.ObjectMeta{Name: "never"}, Spec: v1alpha1.TideSpec{
		Windows: []v1alpha1.TideWindow{{Schedule: "0 0 30 2 *", Duration: metav1.Duration{Duration: time.Hour}}},
	}})
	l := f.ledger()
	l.Labels = map[string]string{"a": "b"}
	f.must(f.api.Update(t.Context(), l))
	if err := f.Reconcile(t.Context(), "n"); !errors.Is(err, queue.ErrAgain) || f.ledger().Spec.Tide != nil {
		t.Errorf("error %v, tide %+v", err, f.ledger().Spec.Tide)
	}
	if f.reconcile(0); !f.ledger().Spec.Tide.Shut(f.clock.Now()) {
		t.Error("not written with what was read")
	}
}

// The ledger has what is promised of the compute, as long as its node is known.
func TestOvercommit(t *testing.T) {
	f := newFixture(t, objects.ReadyLedger("n"))
	core, known := v1alpha1.Percent(150), true
	f.Overcommit = func(string) (v1alpha1.Percent, bool) { return core, known }
	for _, step := range []struct {
		core   v1alpha1.Percent
		known  bool
		want   v1alpha1.Percent
		writes int
	}{{150, true, 150, 1}, {150, true, 150, 1}, {0, false, 150, 1}, {120, true, 120, 2}, {0, true, 0, 3}} {
		core, known = step.core, step.known
		f.reconcile(time.Minute)
		if got := f.ledger().Spec.OvercommitCore; got != step.want || f.specs != step.writes {
			t.Errorf("%+v: the ledger has %d after %d writes", step, got, f.specs)
		}
	}
}
