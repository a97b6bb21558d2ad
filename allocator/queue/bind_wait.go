// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/podstate"
)

// How long a pod waits for other pods to be bound, in all, over its whole life. When a pod
// is bound is for its author to say: one whose schedulerName names no scheduler never is.
// After that the others count as bound to the nodes that they are pinned to. The filters
// count them there anyhow, and get what they take of volumes and devices. If the
// scheduler then refuses the waiting pod, it is given up like any other that is refused.
const (
	// MaxWaitWithin is for pods of the same namespace: as long as a placed pod may be
	// refused before it is given up.
	MaxWaitWithin = 30 * time.Second
	// MaxWaitAcross is for pods of other namespaces. A bind takes milliseconds; this is
	// long enough for a scheduler that is busy, and little for another tenant to take.
	MaxWaitAcross = 2 * time.Second
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
		return MaxWaitAcross
	case w == nil:
		return MaxWaitWithin
	case foreign:
		return MaxWaitAcross - w.across
	default:
		return MaxWaitWithin - w.within
	}
}

// startWait notes that the pod waits for the first one. Time counts once, however many it
// waits for. The members of a gang wait together, so each of them is charged.
func (q *Queue) startWait(pod, first *corev1.Pod) {
	key := podstate.KeyOf(pod)
	if q.cache.Current(pod) == nil {
		return // already deleted: nothing would end the note
	}
	w := q.order.waits[pod.UID]
	if w == nil {
		w = &bindWait{}
		q.order.waits[pod.UID] = w
	}
	w.first, w.since, w.foreign = first.UID, q.clock.Now(), first.Namespace != pod.Namespace
	if q.order.blockedBy[first.UID] == nil {
		q.order.blockedBy[first.UID] = map[types.NamespacedName]bool{}
	}
	q.order.blockedBy[first.UID][key] = true
}

// endWait charges the pod for the time that it has waited since startWait.
func (q *Queue) endWait(pod *corev1.Pod) {
	w := q.order.waits[pod.UID]
	if w == nil || w.first == "" {
		return
	}
	waited := q.clock.Since(w.since)
	if w.foreign {
		w.across += waited
	} else {
		w.within += waited
	}
	if blocked := q.order.blockedBy[w.first]; blocked != nil {
		if delete(blocked, podstate.KeyOf(pod)); len(blocked) == 0 {
			delete(q.order.blockedBy, w.first)
		}
	}
	w.first = ""
}

// forgetWait is for a pod that is past our gate or gone.
func (q *Queue) forgetWait(pod *corev1.Pod) {
	q.endWait(pod)
	delete(q.order.waits, pod.UID)
}
