// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/allocator/scheduling/leaving"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/api/v1alpha1"
)

// endings is the policy of a pod that waits until others end by themselves.
type endings struct {
	*Preemption
	now time.Time
}

func (e *endings) bound(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room leaving.Room) (leaving.Cost, bool) {
	c, ok := e.choose(demand, ledger, room)
	return c.Cost, ok
}

func (e *endings) choose(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room leaving.Room) (leaving.Choice, bool) {
	return backfill.Earliest(demand, ledger, room, func(uid types.UID) (time.Duration, bool) {
		end, known := e.endOf(uid)
		return end.Sub(e.now), known
	})
}

func (e *endings) chosen(c leaving.Choice) (units [][]types.UID) { return each(c.Victims) }

// each are the pods one by one.
func each(pods []types.UID) (units [][]types.UID) {
	for _, uid := range pods {
		units = append(units, []types.UID{uid})
	}
	return units
}

// endOf is when a pod has ended; false where nobody knows.
func (e *endings) endOf(uid types.UID) (time.Time, bool) {
	if pod := e.cache.PodOf(uid); pod != nil {
		return backfill.EndOf(pod, e.now, e.lookahead)
	}
	return time.Time{}, false
}

// ReserveHead reserves room for the first of the waiters, which are in order. It does so for each
// other that may use no model of GPU of those before it. One for which there is none, even on an
// empty node, is passed over. The room is where it is free first, and it stays the same until its
// owner starts.
func (p *Preemption) ReserveHead(ctx context.Context, waiters func(yield func(Waiter) bool)) error {
	type head struct {
		precedence int64
		model      string
	}
	var heads []head
	models, claimed := map[string]bool{}, map[string]bool{}
	for _, n := range p.cache.Index.Room() {
		for i := range n.Devices {
			models[n.Devices[i].Model] = true
		}
	}
	now := p.clock.Now()
	maps.DeleteFunc(p.passedOver, func(_ queue.Item, until time.Time) bool { return !until.After(now) })
	// Owners that have room claim their models first: a younger one has it for as long as it waits.
	for _, r := range p.reservations.All() {
		if r.Kind == reservation.Head {
			for i := range r.Plans {
				for _, g := range r.Plans[i].Grants {
					heads = append(heads, head{p.queue.Precedence(r.Priority, r.Pods[0]), p.modelOf(r.Plans[i].Node, g.UUID)})
				}
			}
		}
	}
	var failed error
	until := now.Add(searchTime)
	waiters(func(w Waiter) bool {
		var may []string
		asker := scheduling.AskerOf(p.cache, w.Item, w.Pods)
		free, lowest := true, p.queue.Precedence(asker.Priority, w.Pods[0].Pod)
		for model := range models {
			if slices.ContainsFunc(w.Pods, func(pod scheduling.Request) bool { return pod.Demand.MayUse(model) }) {
				may = append(may, model)
				free = free && !claimed[model] && !slices.ContainsFunc(heads, func(h head) bool { return h.model == model && h.precedence >= lowest })
			}
		}
		has := p.reservations.Of(w.Item) != nil
		if _, passed := p.passedOver[w.Item]; free && !has && !passed && len(may) > 0 && p.notStarting(asker.Pods) == "" {
			if has, failed = p.reserveFor(ctx, w); !has {
				p.passedOver[w.Item] = now.Add(PassedOver)
			}
		}
		for _, model := range may {
			claimed[model] = claimed[model] || has
		}
		return failed == nil && p.clock.Now().Before(until) && slices.ContainsFunc(slices.Collect(maps.Keys(models)), func(model string) bool { return !claimed[model] })
	})
	return failed
}

// modelOf is the model of a device, empty where it is not known.
func (p *Preemption) modelOf(node, uuid string) string {
	room, _ := p.cache.Index.On(node)
	if d := room.Device(uuid); d != nil {
		return d.Model
	}
	return ""
}

// PassedOver is for how long no room is looked for for a waiter for which there was none.
const PassedOver = 5 * time.Minute

func (p *Preemption) reserveFor(ctx context.Context, w Waiter) (bool, error) {
	now := p.clock.Now()
	e := &endings{p, now}
	pl, err := p.plan(ctx, w, func(time.Time) policy { return e })
	if err != nil || pl == nil {
		return false, err
	}
	r, known := pl.reservation(reservation.Head), true
	if len(r.Leaving) == 0 {
		return false, nil // it is there already, and is of no use
	}
	for uid := range r.Leaving {
		end, is := e.endOf(uid)
		if known = known && is; end.After(r.End) {
			r.End = end
		}
	}
	if !known {
		r.End = time.Time{}
	}
	r.Expires = r.End // whoever is still there then has no known end any more
	if !p.reservations.Put(r) {
		return false, nil
	}
	p.tell(r, notify.ReasonReserved, Describe(r, p.cache, now))
	return true, nil
}
