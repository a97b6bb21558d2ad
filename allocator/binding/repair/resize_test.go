// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/missing"
	"vernier.dev/vernier/allocator/state/resizing"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// A resize is written in two steps, with the agent's report between them. The condition says how far it
// is, the placement follows, and a lost ledger is restored with what is in force.
func TestResize(t *testing.T) {
	l := objects.ReadyLedger("n")
	p := bound(objects.Halves("p", "a"), l, on{"a": 0})
	objects.Grant(l, p, on{"a": 0})
	f := newFixture(t, l, p)
	f.reconcile(0)
	if f.specs+f.conditions > 0 {
		t.Fatalf("%d specs and %d conditions are written where nothing is asked for", f.specs, f.conditions)
	}
	ask := func(text string) {
		t.Helper()
		now := f.pod("p")
		now.Annotations[v1alpha1.AnnotationResize] = text
		f.must(f.api.Update(t.Context(), now))
		f.work.Clear()
		f.handlers.SetPod(now)
		if !f.work.Due[queue.Item{Node: "n"}] {
			t.Error("its node is not looked at")
		}
	}
	is := func(reason string, core v1alpha1.Percent) {
		t.Helper()
		f.reconcile(time.Second)
		f.reconcile(time.Second) // and again, when the watch shows what was written
		now := f.pod("p")
		if c := resizing.ConditionOf(now); c == nil || c.Reason != reason || (c.Status == corev1.ConditionFalse) != (reason == resizing.ReasonDone) {
			t.Errorf("condition %+v, want %s", c, reason)
		}
		if s := f.ledger().Spec.Devices[0].Slices[0]; s.Core != core {
			t.Errorf("the ledger has %+v, want %d %%", s, core)
		}
	}
	report := func(core v1alpha1.Percent, refused string) {
		t.Helper()
		s := f.ledger().Spec.Devices[0].Slices[0]
		f.report(func(status *v1alpha1.SliceLedgerStatus) {
			status.Slices = []v1alpha1.SliceStatus{{Pod: p.UID, Ctr: "a", UUID: first, Resized: s.Resize.Number, InForce: &v1alpha1.Amounts{Core: core, Mem: s.Mem}, Refused: refused}}
		})
	}
	ask(`{"a":{"core":20}}`)
	is(resizing.ReasonInProgress, 50)
	report(20, "")
	is(resizing.ReasonDone, 20)
	placed, err := v1alpha1.ParsePlacement(f.pod("p").Annotations[v1alpha1.AnnotationPlacement])
	f.must(err)
	if of := placed.Containers["a"]; !of.Resized || of.Devices[0].Core != 20 {
		t.Errorf("placement %+v", placed)
	}
	lost := f.ledger()
	grants.Release(lost, func(types.UID) bool { return true })
	restored, fits := missing.InPlace(f.pod("p"), lost)
	if s := restored.Spec.Devices[0].Slices[0]; !fits || s.Core != 20 || s.Asked == nil || s.Asked.Core != 50 {
		t.Errorf("restored %+v, fits %t", s, fits)
	}
	ask(`{"a":{"core":40}}`)
	is(resizing.ReasonInProgress, 40)
	report(20, "it can't")
	is(resizing.ReasonInfeasible, 20)
	ask(`{"a":{"core":60}}`)
	is(resizing.ReasonInfeasible, 20)
	once, others := f.newEvents()
	if len(once) != 0 || others != 3 {
		t.Errorf("events %v and %d others", slices.Sorted(slices.Values(once)), others)
	}
}
