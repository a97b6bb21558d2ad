// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// Sources of the page. What they give is not changed.
type Sources struct {
	Ledgers func(context.Context) ([]*v1alpha1.SliceLedger, error)
	// Gated are the pods that may wait for us.
	Gated func() ([]*corev1.Pod, error)
	// Events are the allocators' on pods.
	Events func(context.Context) ([]corev1.Event, error)
}

// waitingShown bounds the list, oldest first.
const waitingShown = 200

// Waiting are the pods that wait.
type Waiting struct {
	Pods []view.WaitingPod
	// All is how many there are.
	All int
}

func (s Sources) waiting(ctx context.Context) (Waiting, error) {
	pods, err := s.Gated()
	if err != nil {
		return Waiting{}, fmt.Errorf("reading the pods: %w", err)
	}
	pods = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil || !view.Gated(p)
	})
	w := Waiting{All: len(pods)}
	if len(pods) == 0 {
		return w, nil
	}
	events, err := s.Events(ctx)
	if err != nil {
		return w, fmt.Errorf("reading the events: %w", err)
	}
	last := view.LastEvents(events)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range pods[:min(len(pods), waitingShown)] {
		w.Pods = append(w.Pods, view.WaitingPodOf(p, last))
	}
	return w, nil
}
