// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

func TestLedgerTide(t *testing.T) {
	began := time.Date(2026, 5, 1, 23, 0, 0, 0, time.UTC)
	end := began.Add(8 * time.Hour)
	open := &v1alpha1.LedgerTide{
		TideAmounts: v1alpha1.TideAmounts{Core: 80, Mem: 70}, Since: metav1.NewTime(began), Until: &metav1.Time{Time: end},
		Outside: v1alpha1.TideAmounts{Core: 10, Mem: 0}, BeforeSeconds: 600, GraceSeconds: 30,
	}
	shut := &v1alpha1.LedgerTide{Since: metav1.NewTime(began), GraceSeconds: 30}
	for name, tt := range map[string]struct {
		tide       *v1alpha1.LedgerTide
		now        time.Time
		core, mem  v1alpha1.Percent
		shut       bool
		endsAt, by time.Time
		// admits a pod that never ends, and one that ends with the tide.
		admits, admitsEnding bool
	}{
		"none":             {nil, end, 100, 100, false, time.Time{}, time.Time{}, true, true},
		"open":             {open, began, 80, 70, false, end, began.Add(30 * time.Second), true, true},
		"before the end":   {open, end.Add(-10 * time.Minute), 80, 70, false, end, began.Add(30 * time.Second), false, true},
		"just before that": {open, end.Add(-10*time.Minute - 1), 80, 70, false, end, began.Add(30 * time.Second), true, true},
		"ended":            {open, end, 10, 0, true, end, end.Add(30 * time.Second), true, true},
		"shut":             {shut, end, 0, 0, true, time.Time{}, began.Add(30 * time.Second), true, true},
	} {
		core, mem := tt.tide.Allows(tt.now)
		if core != tt.core || mem != tt.mem || tt.tide.Shut(tt.now) != tt.shut {
			t.Errorf("%s: allows %d and %d", name, core, mem)
		}
		if got := tt.tide.EndsAt(); !got.Equal(tt.endsAt) {
			t.Errorf("%s: ends at %v", name, got)
		}
		if got := tt.tide.ReclaimBy(tt.now); !got.Equal(tt.by) {
			t.Errorf("%s: reclaimed by %v", name, got)
		}
		if tt.tide.AdmitsUntil(tt.now, time.Time{}) != tt.admits || tt.tide.AdmitsUntil(tt.now, end) != tt.admitsEnding {
			t.Errorf("%s: admits", name)
		}
	}
	if open.AdmitsUntil(end.Add(-time.Minute), end.Add(1)) {
		t.Error("admits a pod that ends after the tide")
	}
}
