// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Remembered are the pods of which the queue keeps something but that they wait for room. Pods
// that are gone are not among them.
func (q *Queue) Remembered() []types.UID {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Concat(slices.Collect(maps.Keys(q.order.unbound)), slices.Collect(maps.Keys(q.order.constrained)), slices.Collect(maps.Keys(q.order.taking)),
		slices.Collect(maps.Keys(q.order.blockedBy)), slices.Collect(maps.Keys(q.order.waits)))
}

// BindWaits is how much is kept of pods that wait until others are bound.
func (q *Queue) BindWaits() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.order.blockedBy) + len(q.order.waits)
}

// Unschedulable are the pods that are looked at again when something changes.
func (q *Queue) Unschedulable() []types.NamespacedName {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Keys(q.unschedulable))
}

// UnderWay is how many items are looked at, are to be once more, or have a move before them.
func (q *Queue) UnderWay() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.inFlight + len(q.attempts) + len(q.pendingMoves)
}
