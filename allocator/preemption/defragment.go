// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// A pod that fits nowhere although there is room enough has pods moved that allow it. Each is
// evicted, one after the other, when its new place is reserved for the pod that its controller
// makes instead. Where one has no new place, none is evicted.

// Defragment says when pods are moved, and how many.
type Defragment struct {
	// After is how long a pod waits before others are moved for it; 0 moves none.
	After time.Duration
	// MaxPods are moved for one pod at most, PerHour in an hour by one leader.
	MaxPods, PerHour int
}

// PlaceKept is how long the new place of a moved pod is kept after its end.
const PlaceKept = 5 * time.Minute

// movable reports whether a pod may be moved: its label says so, and a controller makes it again.
func movable(pod *corev1.Pod) bool {
	_, in := podrequest.GroupOf(pod)
	return !in && pod.Labels[v1alpha1.LabelMovable] == v1alpha1.LabelMovableTrue && metav1.GetControllerOfNoCopy(pod) != nil
}

// Defragment moves pods for a pod that has waited for long and found no room. The room and the new places are
// reserved. before is called before nodes are looked at.
func (p *Preemption) Defragment(ctx context.Context, w Waiter, before func()) error {
	if slices.ContainsFunc(w.Pods, func(r scheduling.Request) bool { return r.Demand.Idle() }) {
		return nil // nobody moves for an idle slice
	}
	if p.defragment.After == 0 || len(w.Pods) != 1 || w.Item.Pod.Name == "" {
		return nil
	}
	pod := w.Pods[0].Pod
	switch r := p.reservations.Of(w.Item); {
	case r == nil || r.Kind == reservation.Head:
	case r.Kind == reservation.Defragment:
		return p.moveNext(ctx, r)
	default:
		return nil
	}
	now := p.clock.Now()
	due := pod.CreationTimestamp.Add(p.defragment.After)
	maps.DeleteFunc(p.movesAt, func(_ queue.Item, at time.Time) bool { return !at.After(now) })
	p.mu.Lock()
	for _, at := range []time.Time{p.movesAt[w.Item], p.pause} {
		if at.After(due) {
			due = at
		}
	}
	later := p.putOff(pod, due)
	p.mu.Unlock()
	if later {
		return nil
	}
	p.movesAt[w.Item] = now.Add(PassedOver)
	p.queue.AddPodAfter(pod, PassedOver)
	most := min(p.defragment.MaxPods, p.movesLeft(now))
	if most <= 0 {
		return nil
	}
	before()
	asker := scheduling.AskerOf(p.cache, w.Item, w.Pods)
	pl, err := p.plan(ctx, w, func(until time.Time) policy {
		e := p.newEvictions(asker, &bars{in: map[string]bool{}}, false, false, until)
		e.most = most
		return e
	})
	var places []*reservation.Reservation
	if err == nil && pl != nil && len(pl.leaving) > 0 {
		places, err = p.places(ctx, pl)
	}
	p.mu.Lock()
	end := p.clock.Now()
	p.pause = end.Add((WorkerShare - 1) * end.Sub(now))
	p.mu.Unlock()
	if err != nil || places == nil {
		return err
	}
	return p.move(ctx, pl, places)
}

// movesLeft is how many pods may still be moved in this hour.
func (p *Preemption) movesLeft(now time.Time) int {
	p.moved = slices.DeleteFunc(p.moved, func(at time.Time) bool { return now.Sub(at) >= time.Hour })
	return p.defragment.PerHour - len(p.moved)
}

// places are reservations of the new places of the pods that a planner has leave, nil where one
// has none. They are beside what the planner's pod gets, and beside each other.
func (p *Preemption) places(ctx context.Context, pl *planner) (all []*reservation.Reservation, err error) {
	owner := pl.reservation(reservation.Defragment)
	trial := p.cache.Assumption()
	defer trial.End()
	leave := slices.SortedFunc(maps.Values(pl.leaving), moreImportant)
	for _, pod := range leave {
		if err := trial.Count(pod, ""); err != nil {
			return nil, err
		}
	}
	if err := trial.Count(pl.asker.Pods[0], owner.Plans[0].Node); err != nil {
		return nil, err
	}
	for _, pod := range leave {
		again, asked := podstate.Unplaced(pod), 0
		ask, err := scheduling.RequestOf(again, p.classes)
		if err != nil {
			return nil, nil // it cannot be placed again
		}
		asker := scheduling.AskerOf(p.cache, queue.Item{Pod: podstate.KeyOf(pod)}, []scheduling.Request{ask})
		against, _ := p.reservations.Against(asker)
		against = append(append(slices.Clone(against), owner), all...)
		cycle, err := p.filters.Start(ctx, again)
		if err != nil {
			return nil, err
		}
		var place *placement.Plan
		for _, plan := range placement.Rank(ask.Demand, p.roomsBeside(against)) {
			if asked++; asked > MaxNodes {
				break
			}
			if refusals, err := cycle.Refusals(ctx, plan.Node); err != nil {
				return nil, err
			} else if len(refusals) == 0 {
				place = &plan
				break
			}
		}
		if place == nil {
			return nil, nil
		}
		if err := trial.Count(again, place.Node); err != nil {
			return nil, err
		}
		all = append(all, &reservation.Reservation{
			Kind: reservation.Move, Owner: asker.Item, Priority: asker.Priority, Plans: []placement.Plan{*place}, Made: owner.Made,
			For: owner.Owner, Moved: pod.UID, Controller: metav1.GetControllerOfNoCopy(pod).UID,
		})
	}
	return all, nil
}

// roomsBeside is the room of all nodes that is free now, less what is reserved.
func (p *Preemption) roomsBeside(against []*reservation.Reservation) (rooms []*placement.Node) {
	for _, room := range p.cache.Index.Room() {
		if ledger := p.cache.Index.Behind(room); ledger != nil && p.cache.Settled(room.Name) {
			rooms = append(rooms, reservation.Hide(against, room, ledger))
		}
	}
	return rooms
}

// move reserves the room that a planner has found and the new places, and evicts the first pod. It
// does neither where a budget keeps one of the pods.
func (p *Preemption) move(ctx context.Context, pl *planner, places []*reservation.Reservation) error {
	r := pl.reservation(reservation.Defragment)
	r.Expires = r.Made.Add(reservation.MaxRefused)
	for _, pod := range pl.leaving {
		ok, err := p.binder.Evict(ctx, pod, p.graceIn(pod), true)
		if err != nil {
			return err
		}
		if !ok {
			p.refuse(pod, false)
			return nil
		}
		r.Expires = r.Expires.Add(min(graceOf(pod), p.lookahead) + LeaveLate)
	}
	if !p.reservations.Put(r) {
		return nil
	}
	for _, place := range places {
		place.Expires = r.Expires.Add(PlaceKept)
		if !p.reservations.Put(place) {
			p.reservations.Drop(r, "there are as many reservations as may be")
			return nil
		}
	}
	p.tell(r, notify.ReasonReserved, "moves pods that allow it: "+Describe(r, p.cache, r.Made))
	return p.moveNext(ctx, r)
}

// moveNext evicts the next pod that is moved for the owner of a reservation, once the one before has
// left.
func (p *Preemption) moveNext(ctx context.Context, r *reservation.Reservation) error {
	now := p.clock.Now()
	p.queue.AddAfter(r.Owner, EvictAgain)
	if p.evictAt[r.Owner].After(now) {
		return nil // the watch may be behind
	}
	var next *corev1.Pod
	for _, uid := range slices.Sorted(maps.Keys(r.Leaving)) {
		pod := p.cache.PodOf(uid)
		switch {
		case len(p.cache.Index.Holders(uid)) == 0:
		case pod == nil || backfill.Leaves(pod, now, p.lookahead):
			return nil
		default:
			next = pod
		}
	}
	if next == nil || p.movesLeft(now) <= 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p.reservations.Review()
	if p.reservations.Of(r.Owner) != r {
		return nil
	}
	place := p.reservations.Of(queue.Item{Pod: podstate.KeyOf(next)})
	if place == nil || place.Moved != next.UID {
		p.reservations.Drop(r, "a pod that was to be moved has no new place any more")
		return nil
	}
	p.evictAt[r.Owner] = now.Add(EvictAgain)
	ok, err := p.binder.Evict(ctx, next, p.graceIn(next), false)
	if err != nil || !ok {
		return err
	}
	p.moved = append(p.moved, now)
	movedPods.Inc()
	kept := *place
	kept.Expires = p.lateAt(next).Add(PlaceKept)
	p.reservations.Put(&kept)
	p.notify.Emit(next, corev1.EventTypeNormal, notify.ReasonDefragmented, fmt.Sprintf("evicted from node %s, so that %s fits there. Room for the pod that its controller makes instead is kept on node %s %s until %s",
		podstate.TargetNode(next), nameTo(next.Namespace, r), kept.Plans[0].Node, gpus(&kept.Plans[0]), kept.Expires.UTC().Format(time.TimeOnly)+" UTC"))
	return nil
}
