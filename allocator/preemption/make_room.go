// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/podstate"
)

// headsEvery is how often room is reserved for the first waiters at most: that looks at all
// nodes.
const headsEvery = 5 * time.Second

// MakeRoom is for pods that have found no room. Others of lower priority are evicted for them, others
// are moved, or they are the first that wait and have done so for long. The finish writes what was granted so
// far, before nodes are looked at.
func (p *Preemption) MakeRoom(ctx context.Context, w Waiter, finish func()) error {
	if r := p.reservations.Of(w.Item); r != nil && r.Kind == reservation.Defragment {
		return p.moveNext(ctx, r)
	}
	if err := p.Preempt(ctx, w, finish); err != nil {
		return err
	}
	if err := p.Defragment(ctx, w, finish); err != nil {
		return err
	}
	if p.reserveAfter == 0 {
		return nil
	}
	if p.reservations.Of(w.Item) != nil {
		return p.Recheck(ctx, w)
	}
	now := p.clock.Now()
	if wait := p.overdueAt(w.Pods).Sub(now); wait > 0 {
		p.queue.AddAfter(w.Item, wait)
		return nil
	}
	if now.Before(p.headsAt) {
		// One of them is enough.
		if !p.headsDue.Equal(p.headsAt) {
			p.headsDue = p.headsAt
			p.queue.AddAfter(w.Item, p.headsAt.Sub(now))
		}
		return nil
	}
	finish()
	err := p.ReserveHead(ctx, p.overdue)
	spent := p.clock.Now().Sub(now)
	p.headsAt = now.Add(max(headsEvery, WorkerShare*spent))
	return err
}

// overdueAt is when the oldest of the pods has waited for so long that room is reserved: at once
// where a gang that runs is below its minimum without it. Its age counts, which another leader
// knows too.
func (p *Preemption) overdueAt(pods []scheduling.Request) time.Time {
	oldest := pods[0].Pod.CreationTimestamp.Time
	if p.groups.Refills(pods[0].Pod) != nil {
		return oldest
	}
	for i := range pods {
		if t := pods[i].Pod.CreationTimestamp.Time; t.Before(oldest) {
			oldest = t
		}
	}
	return oldest.Add(p.reserveAfter)
}

// overdue yields what has waited for long, the first by priority and age first.
func (p *Preemption) overdue(yield func(Waiter) bool) {
	for _, item := range p.queue.WaitingForRoom() {
		w := Waiter{Item: item, Need: 1}
		if item.Gang.Name != "" {
			g := p.groups.Gang(item.Gang)
			w.Need, w.Within = g.Missing(), scheduling.WithinOf(g)
			w.Pods = p.requests(g.Due)
		} else if pod := p.cache.Pod(item.Pod); pod != nil && podstate.Ready(pod) {
			w.Pods = p.requests([]*corev1.Pod{pod})
		}
		if w.Pods = slices.DeleteFunc(w.Pods, func(r scheduling.Request) bool { return r.Demand.Idle() }); len(w.Pods) == 0 {
			continue // no room is kept for what is promised nothing
		}
		if len(w.Pods) >= w.Need && w.Need > 0 && !p.overdueAt(w.Pods).After(p.clock.Now()) && !yield(w) {
			return
		}
	}
}

// requests are what those of the pods ask for that ask for what can be.
func (p *Preemption) requests(pods []*corev1.Pod) (asks []scheduling.Request) {
	for _, pod := range pods {
		if ask, err := scheduling.RequestOf(pod, p.classes); err == nil {
			asks = append(asks, ask)
		}
	}
	return asks
}
