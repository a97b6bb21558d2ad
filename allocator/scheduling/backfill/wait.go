// SPDX-License-Identifier: Apache-2.0

package backfill

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/scheduling/leaving"
	"vernier.dev/vernier/api/v1alpha1"
)

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
// No pod of Leaving can stay: without the end of any one of them the demand does not fit. Of pods that
// end early enough little leaves, in share.
func Earliest(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room leaving.Room, ends map[types.UID]time.Time) (Wait, bool) {
	var times []time.Time
	shares := map[types.UID]int64{}
	for i := range ledger.Spec.Devices {
		d := &ledger.Spec.Devices[i]
		for j := range d.Slices {
			has, pod := placement.AmountOf(&d.Slices[j]), d.Slices[j].Pod
			shares[pod] += max(int64(has.Core), int64(has.Mem)*int64(v1alpha1.WholeGPU)/int64(max(d.Mem, 1)))
			if end, known := ends[pod]; known {
				times = append(times, end)
			}
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	times = slices.CompactFunc(times, time.Time.Equal)
	c := leaving.Candidates{Pods: make(map[types.UID]leaving.Pod, len(shares))}
	for pod, share := range shares {
		// Who ends later counts as of higher priority.
		at := len(times)
		if end, known := ends[pod]; known {
			at, _ = slices.BinarySearchFunc(times, end, time.Time.Compare)
		}
		c.Pods[pod] = leaving.Pod{UID: pod, Cost: leaving.Cost{Priority: int32(at), Loss: float64(share)}, Gang: -1, Budget: -1}
	}
	choice, ok := c.Search(demand, ledger, room)
	wait := Wait{Plan: choice.Plan, Leaving: choice.Victims}
	if at := int(choice.Cost.Priority); at >= 0 && at < len(times) {
		wait.End = times[at]
	}
	for _, pod := range choice.Victims {
		wait.Share += shares[pod]
	}
	return wait, ok
}
