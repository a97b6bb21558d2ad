// SPDX-License-Identifier: Apache-2.0

package backfill

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/scheduling/leaving"
	"vernier.dev/vernier/api/v1alpha1"
)

// Unknown is the priority of a choice that waits for a pod whose end is not known.
const Unknown = math.MaxInt32

// Earliest is where the demand fits first on the node, as the pods end that have slices there. ends
// is in how long a pod has ended; false where that is not known. False where the demand does not
// fit even on the empty node.
//
// The choice's priority is in how many seconds the last of its pods has ended, or Unknown. Its loss is
// how much of the devices leaves, in percent of one device. So choices compare by time, and then
// by what leaves. No pod of a choice can stay: without its end the demand does not fit.
func Earliest(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room leaving.Room, ends func(types.UID) (time.Duration, bool)) (leaving.Choice, bool) {
	shares := map[types.UID]int64{}
	for i := range ledger.Spec.Devices {
		d := &ledger.Spec.Devices[i]
		for j := range d.Slices {
			has := placement.AmountOf(&d.Slices[j])
			shares[d.Slices[j].Pod] += max(int64(has.Core), int64(has.Mem)*int64(v1alpha1.WholeGPU)/int64(max(d.Mem, 1)))
		}
	}
	c := leaving.Candidates{Pods: make(map[types.UID]leaving.Pod, len(shares))}
	for pod, share := range shares {
		cost := leaving.Cost{Priority: Unknown, Loss: float64(share)}
		if in, known := ends(pod); known {
			cost.Priority = int32(min(math.Ceil(in.Seconds()), Unknown-1))
		}
		c.Pods[pod] = leaving.Pod{UID: pod, Cost: cost, Gang: -1, Budget: -1}
	}
	return c.Search(demand, ledger, room)
}
