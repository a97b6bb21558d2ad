// SPDX-License-Identifier: Apache-2.0

// Package leaving decides which pods leave a node so that another fits there: the least harm, by
// Cost. As in kube-scheduler's preemption all leave at first, and then those stay that need not.
//
// It owns the order of costs, the effect of ending a member of a gang, the count of
// pod disruption budgets, and the search. It works on a ledger and on the room that a ledger
// leaves. It never sees a Kubernetes object, a clock or the network, and it ends no pod.
package leaving

import (
	"cmp"
	"math"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// Pod is one that may leave. One that may not is not among the Candidates.
type Pod struct {
	UID types.UID
	// Cost is what it costs that the pod leaves.
	Cost
	// Gang and Budget are indexes into those of the Candidates, -1 for none.
	Gang, Budget int
}

// Gang is a set of pods that run together.
type Gang struct {
	// Spare is how many members may end one by one before it is below its minimum.
	Spare int
	// Pods all end where the gang ends as a whole: every member that runs, on whatever node.
	Pods []Pod
	// Whole is false where it may not end as a whole, because a member may not.
	Whole bool
}

// Candidates are the pods that may leave.
type Candidates struct {
	// Pods are those of any node, by UID. The members of gangs are among them.
	Pods  map[types.UID]Pod
	Gangs []Gang
	// Budgets are how many pods each PodDisruptionBudget lets be evicted now.
	Budgets []int
}

// Cost orders choices: the first field that differs decides.
type Cost struct {
	// Priority is the highest of a victim; the lowest number where there is none.
	Priority int32
	// Broken counts gangs that end as a whole, Pods the victims.
	Broken, Pods int
	// Loss is how much work is lost, share in percent × run time in seconds. Grace is how many seconds
	// it takes to end at most; 0 or more. They decide together: see lost.
	Loss, Grace float64
}

// None is the cost of ending no pod.
var None = Cost{Priority: math.MinInt32}

// Compare is negative where c is less harm than d.
func (c Cost) Compare(d Cost) int {
	return cmp.Or(cmp.Compare(c.Priority, d.Priority), cmp.Compare(c.Broken, d.Broken), cmp.Compare(c.Pods, d.Pods), cmp.Compare(c.lost(), d.lost()))
}

// lost is the work that is lost, and the time for which the room stands still until all have ended:
// that of a whole device, whatever of it they have.
func (c Cost) lost() float64 { return c.Loss + float64(v1alpha1.WholeGPU)*c.Grace }

func (c Cost) plus(d Cost) Cost {
	return Cost{max(c.Priority, d.Priority), c.Broken + d.Broken, c.Pods + d.Pods, c.Loss + d.Loss, max(c.Grace, d.Grace)}
}

// Room is what a ledger leaves of its node, nil when the node takes nothing. Fewer slices never
// leave less.
type Room func(*v1alpha1.SliceLedger) *placement.Node

// Choice is which pods end, and what the pod gets then.
type Choice struct {
	// Victims are sorted. Those of gangs that end as a whole may be on other nodes.
	Victims []types.UID
	Plan    placement.Plan
	Cost    Cost
}
