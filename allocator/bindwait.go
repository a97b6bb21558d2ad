// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// How long a pod waits for other pods to be bound, in all, over its whole life. When a pod
// is bound is for its author to say: one whose schedulerName names no scheduler never is.
// After that the others count as bound to the nodes that they are pinned to, where the
// filters count them anyhow. If the scheduler then refuses the waiting pod, it is given up
// like any other that is refused.
const (
	// maxWaitWithin is for pods of the same namespace: as long as a placed pod may be
	// refused before it is given up.
	maxWaitWithin = 30 * time.Second
	// maxWaitAcross is for pods of other namespaces. A bind takes milliseconds; this is
	// long enough for a scheduler that is busy, and little for another tenant to take.
	maxWaitAcross = 2 * time.Second
)

// bindWait is how long one gated pod has waited for others to be bound.
type bindWait struct {
	within, across time.Duration
	// first is the pod that it waits for now, since then; empty if it waits for none.
	first   types.UID
	since   time.Time
	foreign bool
}

// left is how long a pod that has waited this long may wait for a pod of its namespace,
// or of another. It is called on nil for a pod that has not waited.
func (w *bindWait) left(foreign bool) time.Duration {
	switch {
	case w == nil && foreign:
		return maxWaitAcross
	case w == nil:
		return maxWaitWithin
	case foreign:
		return maxWaitAcross - w.across
	default:
		return maxWaitWithin - w.within
	}
}

// startWait notes that the pod waits for the first one. Time counts once, however many it
// waits for. The members of a gang wait together, so each of them is charged. The caller
// holds mu.
func (a *Allocator) startWait(pod, first *corev1.Pod) {
	key := keyOf(pod)
	if known := a.pods[key]; known == nil || known.UID != pod.UID {
		return // deleted meanwhile, and nothing would end the note
	}
	w := a.order.waits[pod.UID]
	if w == nil {
		w = &bindWait{}
		a.order.waits[pod.UID] = w
	}
	w.first, w.since, w.foreign = first.UID, a.Clock.Now(), first.Namespace != pod.Namespace
	if a.order.behind[first.UID] == nil {
		a.order.behind[first.UID] = map[types.NamespacedName]bool{}
	}
	a.order.behind[first.UID][key] = true
}

// endWait charges the pod for the time that it has waited since startWait. The caller
// holds mu.
func (a *Allocator) endWait(pod *corev1.Pod) {
	w := a.order.waits[pod.UID]
	if w == nil || w.first == "" {
		return
	}
	waited := a.Clock.Since(w.since)
	if w.foreign {
		w.across += waited
	} else {
		w.within += waited
	}
	if behind := a.order.behind[w.first]; behind != nil {
		if delete(behind, keyOf(pod)); len(behind) == 0 {
			delete(a.order.behind, w.first)
		}
	}
	w.first = ""
}

// forgetWait is for a pod that is past our gate or gone. The caller holds mu.
func (a *Allocator) forgetWait(pod *corev1.Pod) {
	a.endWait(pod)
	delete(a.order.waits, pod.UID)
}
