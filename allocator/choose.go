// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// ask is one pod of a set and what it asks for.
type ask struct {
	pod    *corev1.Pod
	demand *placement.Demand
}

// choice is what was decided for a pod.
type choice struct {
	ask
	plan placement.Plan
	// ledger of the plan's node, in the version that the decision was made on.
	ledger *v1alpha1.SliceLedger
}

// decide chooses node and devices for every pod of a set, or for none: a pod alone
// is a set of one. Each pod gets the best plan whose node the scheduler accepts
// beside the pods of the set before it, the larger ones first. Without one for
// each, all of them wait and there are no choices.
//
// Nothing is written: the round grants the choices of a node together.
func (a *Allocator) decide(ctx context.Context, set []ask) ([]choice, error) {
	start := a.Clock.Now()
	defer func() { decisionSeconds.Observe(a.Clock.Since(start).Seconds()) }()
	set = slices.Clone(set)
	slices.SortStableFunc(set, func(p, q ask) int { return cmp.Compare(q.demand.Devices(), p.demand.Devices()) })
	t := trial{Allocator: a, set: set}
	defer t.end()
	for _, pod := range set {
		why, err := t.next(ctx, pod)
		if err != nil {
			return nil, err
		}
		if why != nil {
			a.keepWaiting(set, pod.pod, why)
			return nil, nil
		}
	}
	return t.decided()
}
