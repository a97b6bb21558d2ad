// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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
	Pods []WaitingPod
	// All is how many there are.
	All int
}

// WaitingPod is one of them and why it waits.
type WaitingPod struct {
	Owner, Namespace, Name string
	// Reason is empty where no event says one: none was made yet, or it has expired.
	Reason string
	Since  time.Time
}

func (s Sources) waiting(ctx context.Context) (Waiting, error) {
	pods, err := s.Gated()
	if err != nil {
		return Waiting{}, fmt.Errorf("reading the pods: %w", err)
	}
	pods = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil || !slices.Contains(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: v1alpha1.Gate})
	})
	w := Waiting{All: len(pods)}
	if len(pods) == 0 {
		return w, nil
	}
	events, err := s.Events(ctx)
	if err != nil {
		return w, fmt.Errorf("reading the events: %w", err)
	}
	said := lastWords(events)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range pods[:min(len(pods), waitingShown)] {
		pod := WaitingPod{Owner: p.Namespace + "/" + p.Name, Namespace: p.Namespace, Name: p.Name, Since: p.CreationTimestamp.UTC(), Reason: said[p.UID]}
		if len(p.Spec.SchedulingGates) > 1 {
			pod.Reason = "another scheduling gate comes first"
			for _, g := range p.Spec.SchedulingGates {
				if g.Name != v1alpha1.Gate {
					pod.Reason += ": " + g.Name
				}
			}
		}
		w.Pods = append(w.Pods, pod)
	}
	return w, nil
}

// lastWords is what was said last on each pod.
func lastWords(events []corev1.Event) map[types.UID]string {
	words, at := map[types.UID]string{}, map[types.UID]time.Time{}
	for i := range events {
		e := &events[i]
		seen := e.LastTimestamp.Time
		if e.EventTime.After(seen) {
			seen = e.EventTime.Time
		}
		if e.Series != nil && e.Series.LastObservedTime.After(seen) {
			seen = e.Series.LastObservedTime.Time
		}
		if uid := e.InvolvedObject.UID; words[uid] == "" || seen.After(at[uid]) {
			words[uid], at[uid] = e.Message, seen
		}
	}
	return words
}
