// SPDX-License-Identifier: Apache-2.0

package tide

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// lease is how far ahead of the time the end in a ledger is: at least so far where the tides stay
// open, and twice that at most. It is the same until it has to be another.
const lease = 12 * time.Hour

// Effective is what tides that select a node make together: the smaller amounts, and until when they
// stay. It is nil without tides. Outside is what is left when all are shut. Since is not set. next is
// when it may be another, zero for never.
func Effective(tides []*Tide, now time.Time) (effective *v1alpha1.LedgerTide, next time.Time) {
	if len(tides) == 0 {
		return nil, time.Time{}
	}
	all := v1alpha1.TideAmounts{Core: v1alpha1.WholeGPU, Mem: v1alpha1.WholeGPU}
	is, outside := all, all
	var names []string
	var before time.Duration
	grace := tides[0].grace
	for _, t := range tides {
		amounts := t.outside
		open, changes := t.Open(now)
		if open {
			amounts = t.lend
		} else {
			changes = t.Next(now)
		}
		if !changes.IsZero() && (next.IsZero() || changes.Before(next)) {
			next = changes
		}
		is, outside = smaller(is, amounts), smaller(outside, t.outside)
		before, grace = max(before, t.before), min(grace, t.grace)
		names = append(names, t.Name)
	}
	slices.Sort(names)
	effective = &v1alpha1.LedgerTide{
		TideAmounts: is, Outside: outside, BeforeSeconds: int32(before / time.Second), GraceSeconds: int32(grace / time.Second),
		Tides: names[:min(len(names), v1alpha1.MaxLedgerTides)],
	}
	// The amounts become less when a tide shuts that lends less outside. One that opens before that and
	// shuts again leaves them no less than they are now.
	var until time.Time
	for _, t := range tides {
		if smaller(is, t.outside) == is {
			continue
		}
		if _, end := t.Open(now); until.IsZero() || end.Before(until) {
			until = end
		}
	}
	if until.IsZero() {
		return effective, next
	}
	if far := now.Add(2 * lease); until.After(far) {
		until = far.Truncate(lease)
	}
	effective.Until = &metav1.Time{Time: until.UTC()}
	if until.Before(next) {
		next = until
	}
	return effective, next
}

func smaller(a, b v1alpha1.TideAmounts) v1alpha1.TideAmounts {
	return v1alpha1.TideAmounts{Core: min(a.Core, b.Core), Mem: min(a.Mem, b.Mem)}
}
