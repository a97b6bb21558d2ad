// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

func onIdle(name string) *corev1.Pod { return objects.Single(name, objects.IdleShare(30, 100)) }

// A pod whose idle slice was taken back is evicted, and gets none again; one with another share gets its
// own back. Where a budget forbids the eviction it is tried again.
func TestIdleSliceIsNotRestored(t *testing.T) {
	l := objects.ReadyLedger("n")
	idle, other := bound(onIdle("idle"), l, on{"c": 0}), bound(objects.Halves("other", "a"), l, on{"a": 1})
	f := newFixture(t, l, idle, other)
	f.refuse = func(client.Object) error { return nil }
	f.evictions = func() error { return apierrors.NewTooManyRequests("the budget is used up", 10) }
	f.reconcile(0)
	if f.device(idle, "c") != "" || f.device(other, "a") != second {
		t.Errorf("the idle slice is on %q, the other on %q", f.device(idle, "c"), f.device(other, "a"))
	}
	if got := f.work.Later[queue.Item{Node: "n"}]; got != evictAgain || len(f.evicted) > 0 {
		t.Errorf("looked at after %v, evicted %v", got, f.evicted)
	}
	if !f.Cache.Settled("n") {
		t.Error("the node takes nothing")
	}
	f.evictions = nil
	f.reconcile(evictAgain)
	if len(f.evicted) != 1 || f.evicted[0] != "idle" {
		t.Errorf("evicted %v, want idle", f.evicted)
	}
}

// A ledger that is behind its pods has none of them evicted.
func TestIdleSliceOfAnOldLedger(t *testing.T) {
	l := objects.ReadyLedger("n")
	idle := bound(onIdle("idle"), l, on{"c": 0})
	f := newFixture(t, l, idle)
	now := f.ledger()
	objects.Grant(now, idle, on{"c": 0})
	f.must(f.api.Update(t.Context(), now))
	if err := f.Reconcile(t.Context(), "n"); !errors.Is(err, queue.ErrAgain) || len(f.evicted) > 0 {
		t.Errorf("%v, evicted %v", err, f.evicted)
	}
	if f.reconcile(0); len(f.evicted) > 0 {
		t.Errorf("evicted %v", f.evicted)
	}
}

// A pod goes elsewhere whose idle slice has got next to nothing for ten minutes.
func TestStarvedIdleSlice(t *testing.T) {
	l := objects.ReadyLedger("n")
	starves, other := bound(onIdle("starves"), l, on{"c": 0}), bound(objects.Halves("other", "a"), l, on{"a": 1})
	objects.Grant(objects.Grant(l, starves, on{"c": 0}), other, on{"a": 1})
	since := &metav1.Time{Time: start}
	for _, p := range []types.UID{starves.UID, other.UID} {
		l.Status.Slices = append(l.Status.Slices, v1alpha1.SliceStatus{Pod: p, Ctr: map[types.UID]string{"starves": "c", "other": "a"}[p], UUID: first, StarvedSince: since})
	}
	l.Status.Slices[1].UUID = second
	f := newFixture(t, l, starves, other)
	f.reconcile(9 * time.Minute)
	if got := f.work.Later[queue.Item{Node: "n"}]; got != time.Minute || len(f.evicted) > 0 {
		t.Errorf("looked at after %v, evicted %v", got, f.evicted)
	}
	f.reconcile(time.Minute)
	if len(f.evicted) != 1 || f.evicted[0] != "starves" {
		t.Errorf("evicted %v, want starves alone", f.evicted)
	}
	f.report(func(s *v1alpha1.SliceLedgerStatus) { s.Slices[0].StarvedSince = nil })
	f.evicted = nil
	f.reconcile(time.Hour)
	if len(f.evicted) > 0 {
		t.Errorf("evicted %v, which has enough now", f.evicted)
	}
}
