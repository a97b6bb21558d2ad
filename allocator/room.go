// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"time"

	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/state/podstate"
)

// headsEvery is how often room is reserved for the first waiters at most: that looks at all
// nodes.
const headsEvery = 5 * time.Second

// makeRoom is for pods that have found no room: others of lower priority are evicted for them,
// or they are the first that wait and have done so for long. finish writes what was granted so
// far, before nodes are looked at.
func (a *Allocator) makeRoom(ctx context.Context, w preemption.Waiter, finish func()) error {
	if err := a.preemption.Preempt(ctx, w, finish); err != nil {
		return err
	}
	if a.reserveAfter == 0 {
		return nil
	}
	if a.reservations.Of(w.Item) != nil {
		return a.preemption.Recheck(ctx, w)
	}
	now := a.clock.Now()
	if wait := a.overdueAt(w.Pods).Sub(now); wait > 0 {
		a.queue.AddAfter(w.Item, wait)
		return nil
	}
	if now.Before(a.headsAt) {
		// One of them is enough.
		if !a.headsDue.Equal(a.headsAt) {
			a.headsDue = a.headsAt
			a.queue.AddAfter(w.Item, a.headsAt.Sub(now))
		}
		return nil
	}
	finish()
	err := a.preemption.ReserveHead(ctx, a.overdue)
	spent := a.clock.Now().Sub(now)
	a.headsAt = now.Add(max(headsEvery, preemption.WorkerShare*spent))
	return err
}

// overdueAt is when the oldest of the pods has waited for so long that room is reserved: at once
// where a gang that runs is below its minimum without it. Its age counts, which another leader
// knows too.
func (a *Allocator) overdueAt(pods []scheduling.Request) time.Time {
	oldest := pods[0].Pod.CreationTimestamp.Time
	if a.groups.Refills(pods[0].Pod) != nil {
		return oldest
	}
	for _, p := range pods {
		if t := p.Pod.CreationTimestamp.Time; t.Before(oldest) {
			oldest = t
		}
	}
	return oldest.Add(a.reserveAfter)
}

// overdue yields what has waited for long, the first by priority and age first.
func (a *Allocator) overdue(yield func(preemption.Waiter) bool) {
	for _, item := range a.queue.WaitingForRoom() {
		w := preemption.Waiter{Item: item, Need: 1}
		if item.Gang.Name != "" {
			g := a.groups.Gang(item.Gang)
			w.Need, w.Within = g.Missing(), scheduling.WithinOf(g)
			w.Pods, _ = a.asks(g.Due)
		} else if pod := a.cache.Pod(item.Pod); pod != nil && podstate.Ready(pod) {
			if demand, err := a.asksOf(pod); err == nil {
				w.Pods = []scheduling.Request{{Pod: pod, Demand: demand}}
			}
		}
		if len(w.Pods) >= w.Need && w.Need > 0 && !a.overdueAt(w.Pods).After(a.clock.Now()) && !yield(w) {
			return
		}
	}
}
