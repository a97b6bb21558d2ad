// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// The condition follows the ledger: when all slices that run are idle for long, when one works, when
// nothing is known; each change is one write, and each time of idleness one event.
func TestIdle(t *testing.T) {
	l := objects.ReadyLedger("n")
	p, works := bound(objects.Halves("p", "a", "b"), l, on{"a": 0, "b": 1}), bound(objects.Halves("works", "a"), l, on{"a": 1})
	gated := objects.Halves("gated", "a")
	objects.Grant(objects.Grant(l, p, on{"a": 0, "b": 1}), gated, on{"a": 0})
	running(p, l, "a", first)
	running(p, l, "b", second)
	running(works, l, "a", second)
	f := newFixture(t, l, p, works, gated)
	f.IdleAfter = 30 * time.Minute
	at := func(after time.Duration) *metav1.Time { return &metav1.Time{Time: start.Add(after)} }
	idle := func(a, b *metav1.Time) func() {
		return func() {
			f.report(func(s *v1alpha1.SliceLedgerStatus) { s.Slices[0].IdleSince, s.Slices[1].IdleSince = a, b })
		}
	}
	ready := func(status metav1.ConditionStatus) func() {
		return func() {
			f.report(func(s *v1alpha1.SliceLedgerStatus) {
				s.Conditions[0].Status, s.Conditions[0].LastTransitionTime = status, metav1.NewTime(f.clock.Now())
			})
		}
	}
	for _, step := range []struct {
		name   string
		do     func()
		to     time.Duration // since the start
		status corev1.ConditionStatus
		since  *metav1.Time
		writes int
		events int
	}{
		{"one of two is idle", idle(at(0), nil), time.Hour, "", nil, 0, 0},
		{"both, but not for long", idle(at(0), at(time.Hour)), 89 * time.Minute, "", nil, 0, 0},
		{"both for long", func() {}, 90 * time.Minute, corev1.ConditionTrue, at(time.Hour), 1, 1},
		{"still", func() {}, 3 * time.Hour, corev1.ConditionTrue, at(time.Hour), 1, 1},
		{"the agent is away for a moment", ready(metav1.ConditionFalse), 3*time.Hour + time.Minute, corev1.ConditionTrue, at(time.Hour), 1, 1},
		{"the agent is away", func() {}, 3*time.Hour + 2*time.Minute, corev1.ConditionUnknown, at(3*time.Hour + 2*time.Minute), 2, 1},
		{"it is back", ready(metav1.ConditionTrue), 4 * time.Hour, corev1.ConditionTrue, at(time.Hour), 3, 1},
		{"one works", idle(nil, at(time.Hour)), 5 * time.Hour, corev1.ConditionFalse, at(5 * time.Hour), 4, 1},
		{"both idle again", idle(at(6*time.Hour), at(time.Hour)), 7 * time.Hour, corev1.ConditionTrue, at(6 * time.Hour), 5, 2},
		{"containers have ended", func() { f.report(func(s *v1alpha1.SliceLedgerStatus) { s.Slices = s.Slices[2:] }) }, 8 * time.Hour, corev1.ConditionFalse, at(8 * time.Hour), 6, 2},
		{"off", func() { f.IdleAfter = 0 }, 9 * time.Hour, corev1.ConditionUnknown, at(9 * time.Hour), 7, 2},
	} {
		step.do()
		f.reconcile(step.to - f.clock.Now().Sub(start))
		f.reconcile(0) // nothing has changed
		var status corev1.ConditionStatus
		var since *metav1.Time
		if c := conditionOf(f.pod("p"), v1alpha1.PodConditionGPUIdle); c != nil {
			status, since = c.Status, &c.LastTransitionTime
		}
		once, _ := f.newEvents()
		if status != step.status || !since.Equal(step.since) || f.conditions != step.writes || len(once) != step.events || slices.ContainsFunc(once, func(r string) bool { return r != notify.ReasonIdle }) {
			t.Errorf("%s: %q since %v, %d writes, events %q; want %q since %v, %d, %d", step.name, status, since, f.conditions, once, step.status, step.since, step.writes, step.events)
		}
	}
	if conditionOf(f.pod("works"), v1alpha1.PodConditionGPUIdle) != nil || conditionOf(f.pod("gated"), v1alpha1.PodConditionGPUIdle) != nil {
		t.Error("a pod has the condition that never was idle")
	}
}

// What comes later is looked at when it is due.
func TestIdle_IsLookedAtInTime(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*v1alpha1.SliceLedgerStatus)
		want time.Duration
	}{
		"the rest of idle.after": {func(s *v1alpha1.SliceLedgerStatus) {
			s.Slices[0].IdleSince = &metav1.Time{Time: start.Add(-5 * time.Minute)}
		}, 25 * time.Minute},
		"the rest of the agent's grace": {func(s *v1alpha1.SliceLedgerStatus) {
			s.Conditions[0].Status, s.Conditions[0].LastTransitionTime = metav1.ConditionFalse, metav1.NewTime(start.Add(-time.Minute))
		}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			l := objects.ReadyLedger("n")
			p := bound(objects.Halves("p", "a"), l, on{"a": 0})
			running(p, l, "a", first)
			tt.edit(&l.Status)
			f := newFixture(t, objects.Grant(l, p, on{"a": 0}), p)
			f.IdleAfter = 30 * time.Minute
			f.reconcile(0)
			if got := f.work.Later; len(got) != 1 || got[queue.Item{Node: "n"}] != tt.want {
				t.Errorf("looked at after %v, want %v", got, tt.want)
			}
		})
	}
}
