// SPDX-License-Identifier: Apache-2.0

package backfill

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// Room is what is left of a node under a ledger, nil when it takes nothing. It never shows
// more of a device than the sums of the ledger leave.
type Room func(*v1alpha1.SliceLedger) *placement.Node

// Wait is the room that a pod waits for on a node.
type Wait struct {
	// Plan is what the pod gets there.
	Plan placement.Plan
	// Leaving are the pods that have to end first, sorted; empty when it fits now.
	Leaving []types.UID
	// End is when the last of them has ended, zero where that is not known.
	End time.Time
	// Share is how much of the devices has to leave, in percent of one device.
	Share int64
}

// Compare orders by time: what fits now, then the earliest known end, then the least share
// that must leave. Equal ones are ordered by the node's name.
func (w *Wait) Compare(other *Wait) int {
	return cmp.Or(
		cmp.Compare(w.order(), other.order()),
		w.End.Compare(other.End),
		cmp.Compare(w.Share, other.Share),
		strings.Compare(w.Plan.Node, other.Plan.Node),
	)
}

func (w *Wait) order() int {
	switch {
	case len(w.Leaving) == 0:
		return 0
	case !w.End.IsZero():
		return 1
	}
	return 2
}

// Earliest is where and when the demand fits first on the node, as the pods end that have
// slices there. The ends are the known ends by pod; other pods end at an unknown time. False where
// the demand does not fit even on the empty node.
//
// No pod of Leaving can stay: without the end of any one of them the demand does not fit.
func Earliest(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room Room, ends map[types.UID]time.Time) (Wait, bool) {
	s := newSearch(demand, ledger, room, ends)
	if s == nil || !s.shortest() {
		return Wait{}, false
	}
	s.drop()
	wait, known := Wait{Plan: s.plan}, true
	for _, p := range s.pods {
		if !p.out {
			continue
		}
		wait.Leaving = append(wait.Leaving, p.uid)
		wait.Share += p.share
		if known = known && p.known; p.end.After(wait.End) {
			wait.End = p.end
		}
	}
	if !known {
		wait.End = time.Time{}
	}
	slices.Sort(wait.Leaving)
	return wait, true
}
