// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/page/usage"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/allocator/state/waiting"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/v1alpha1"
)

// Sources of the page. Their answers are not changed.
type Sources struct {
	Ledgers func(context.Context) ([]*v1alpha1.SliceLedger, error)
	// Gated are the pods that may wait for us.
	Gated func() ([]*corev1.Pod, error)
	// Pod is one by its name.
	Pod func(namespace, name string) (*corev1.Pod, error)
	// Node is one by its name, nil for one that is not known.
	Node func(name string) *corev1.Node
	// Classes are the GPUClasses that there are.
	Classes func(context.Context) ([]v1alpha1.GPUClass, error)
	// Events are the allocators' on pods.
	Events func(context.Context) ([]corev1.Event, error)
	// Uses is what is known of the containers' use on nodes. It does not wait for what isn't.
	Uses func(ctx context.Context, nodes []string) map[string]usage.Reading
	// Advice is all that there is. With an error nothing is shown of it.
	Advice func(context.Context) ([]v1alpha1.SliceAdvice, error)
}

// waitingShown bounds the list, oldest first, and demandsShown those for which the ledgers are looked
// at: each look takes milliseconds on a large cluster.
const (
	waitingShown = 200
	demandsShown = 32
)

// Waiting are the pods that wait.
type Waiting struct {
	Queue []Queued
	// Pods is how many there are, and Shown how many of them are in the queue.
	Pods, Shown int
	// Unavailable are the classes that no GPU of the cluster could serve.
	Unavailable []Unavailable
	// reserved is for whom GPUs are kept.
	reserved map[view.GPUOf][]Kept
}

// Unavailable is a class, and why no GPU serves it.
type Unavailable struct{ Class, Message string }

// Kept is the workload that a GPU is kept for. Until is when it was to be free; nil where nobody
// knew.
type Kept struct {
	Namespace, Workload string
	Until               *metav1.Time
}

// Queued are waiting pods of one workload of which the same was said; the pod is the oldest.
type Queued struct {
	view.WaitingPod
	Workload string
	Pods     int
}

func (s Sources) waiting(ctx context.Context, ledgers []*v1alpha1.SliceLedger) (Waiting, error) {
	pods, err := s.Gated()
	if err != nil {
		return Waiting{}, fmt.Errorf("reading the pods: %w", err)
	}
	pods = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil || !podstate.Gated(p)
	})
	w := Waiting{Pods: len(pods), reserved: map[view.GPUOf][]Kept{}}
	list, err := s.Classes(ctx)
	if err != nil {
		return w, fmt.Errorf("reading the GPUClasses: %w", err)
	}
	for i := range list {
		if c := meta.FindStatusCondition(list[i].Status.Conditions, v1alpha1.ConditionAvailable); c != nil && c.Status == metav1.ConditionFalse {
			w.Unavailable = append(w.Unavailable, Unavailable{list[i].Name, c.Message})
		}
	}
	slices.SortFunc(w.Unavailable, func(a, b Unavailable) int { return cmp.Compare(a.Class, b.Class) })
	if len(pods) == 0 {
		return w, nil
	}
	events, err := s.Events(ctx)
	if err != nil {
		return w, fmt.Errorf("reading the events: %w", err)
	}
	picture := waiting.Picture{Ledgers: ledgers, Node: s.Node, Classes: classes.Of(list...), Said: view.SaidIn(events), Owners: map[view.GPUOf][]string{}, Now: time.Now(), Most: demandsShown}
	slices.SortFunc(pods, podstate.ByAge)
	for _, p := range pods {
		w.keep(workload{p.Namespace, view.WorkloadOf(p)}, picture.Said.Reserved(p))
	}
	for gpu, kept := range w.reserved {
		for _, k := range kept {
			picture.Owners[gpu] = append(picture.Owners[gpu], k.Namespace+"/"+k.Workload)
		}
	}
	type key struct {
		workload
		said string
	}
	at := map[key]int{}
	for _, p := range pods {
		k := key{workload{p.Namespace, view.WorkloadOf(p)}, picture.Said.Text(p)}
		i, is := at[k]
		if !is {
			if len(w.Queue) == waitingShown {
				continue
			}
			i, at[k] = len(w.Queue), len(w.Queue)
			w.Queue = append(w.Queue, Queued{WaitingPod: picture.Waiting(p), Workload: k.name})
		}
		w.Queue[i].Pods++
		w.Shown++
	}
	return w, nil
}

// keep marks the GPUs that are kept for a pod of a workload; those of its pods count as one.
func (w *Waiting) keep(of workload, r *view.Reserved) {
	if r == nil {
		return
	}
	for _, gpu := range r.GPUs() {
		if kept := w.reserved[gpu]; !slices.ContainsFunc(kept, func(k Kept) bool { return k.Namespace == of.namespace && k.Workload == of.name }) {
			w.reserved[gpu] = append(kept, Kept{of.namespace, of.name, r.Until})
		}
	}
}
