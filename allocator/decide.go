// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"

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

// decide chooses node and devices for a pod that is placed alone: the best plan whose node
// the scheduler accepts. Without one the pod waits, and there is no choice.
//
// Nothing is written: the round grants the choices of a node together.
func (a *Allocator) decide(ctx context.Context, pod ask) (*choice, error) {
	start := a.Clock.Now()
	defer func() { decisionSeconds.Observe(a.Clock.Since(start).Seconds()) }()
	t := trial{Allocator: a, set: []ask{pod}}
	defer t.end()
	why, err := t.next(ctx, pod)
	if err != nil {
		return nil, err
	}
	if why != nil {
		a.keepWaiting(pod.pod, why)
		return nil, nil
	}
	choices, err := t.decided()
	if err != nil {
		return nil, err
	}
	return &choices[0], nil
}
