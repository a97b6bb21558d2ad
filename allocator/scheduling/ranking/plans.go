// SPDX-License-Identifier: Apache-2.0

package ranking

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// Plans are plans for the pod, best first, and the rooms that they were made in.
// Where devices are unlike, a node may come up more than once. Nothing may be set
// before the loop has ended.
//
// First come those of the level of topology that the pod names, then of the next lower one that
// will do. Of each the first are those with instances of MIG: they hold the pod best. Last come
// the nodes that are set aside, so that they cost nothing while others have room.
func (r *Ranking) Plans(a *Ask) iter.Seq2[placement.Plan, *placement.Node] {
	if a.Idle() {
		return r.idle(a)
	}
	return func(yield func(placement.Plan, *placement.Node) bool) {
		asks := r.byLevel(a)
		for _, one := range asks {
			if !r.open(one, yield) {
				return
			}
		}
		for _, one := range asks {
			if !one.MustCut() && !r.each(one, r.partly, true, yield) {
				return
			}
		}
	}
}

// byLevel is the pod as it asks for each level of topology that will do, the one first that it
// names, without those of which no node has two devices where it needs two.
func (r *Ranking) byLevel(a *Ask) (asks []*Ask) {
	levels := a.Levels()
	if levels == nil {
		return []*Ask{a}
	}
	for _, level := range levels {
		if count, of := r.linked[level]; !of || count > 0 || a.LeastDevices() < 2 {
			asks = append(asks, &Ask{a.At(level), a.CPU, a.Mem})
		}
	}
	return asks
}

// open yields the plans on nodes that are not set aside, and on others with instances of MIG.
func (r *Ranking) open(a *Ask, yield func(placement.Plan, *placement.Node) bool) bool {
	for _, aside := range []bool{false, true} {
		if a.MayCut() && !r.each(a, r.cut, aside, func(p placement.Plan, n *placement.Node) bool { return !p.Cut() || yield(p, n) }) {
			return false
		}
	}
	if a.MustCut() {
		return true
	}
	usual := r.nodes
	if a.inWords() {
		for id := range r.engine.Ranked(a.leading()) {
			n := r.parts[id].node
			if !n.host.takes(a) {
				continue
			}
			// The engine compares nodes. Which devices of one is nothing that it has learnt.
			if plan, ok := placement.Fit(a.Demand, n.room); ok && !yield(plan, n.room) {
				return false
			}
		}
		// What no part of them could take alone their parts may take together.
		usual = r.partly
	}
	return r.each(a, usual, false, yield)
}

// each yields the plans of nodes that are ranked one by one.
func (r *Ranking) each(a *Ask, nodes map[string]*node, aside bool, yield func(placement.Plan, *placement.Node) bool) bool {
	for _, plan := range placement.Rank(a.Demand, rooms(nodes, a, aside)) {
		if !yield(plan, r.nodes[plan.Node].room) {
			return false
		}
	}
	return true
}

// idle are the plans for an idle slice: first the device of which most is expected to be idle.
func (r *Ranking) idle(a *Ask) iter.Seq2[placement.Plan, *placement.Node] {
	return func(yield func(placement.Plan, *placement.Node) bool) {
		for _, aside := range []bool{false, true} {
			var found []placement.Plan
			idle := map[string]v1alpha1.Percent{}
			for _, room := range rooms(r.nodes, a, aside) {
				for i := range room.Devices {
					alone := placement.Node{Name: room.Name, Devices: room.Devices[i : i+1]}
					if plan, ok := placement.Fit(a.Demand, &alone); ok {
						found = append(found, plan)
						idle[room.Devices[i].UUID] = room.Devices[i].Idle
					}
				}
			}
			slices.SortFunc(found, func(p, q placement.Plan) int {
				a, b := p.Grants[0].UUID, q.Grants[0].UUID
				return cmp.Or(cmp.Compare(idle[b], idle[a]), strings.Compare(p.Node, q.Node), strings.Compare(a, b))
			})
			for _, plan := range found {
				if !yield(plan, r.nodes[plan.Node].room) {
					return
				}
			}
		}
	}
}

// Short reports whether there is no room for the pod on any devices, whatever else
// there is of the host. It is to be asked when there are no plans.
func (r *Ranking) Short(a *Ask) bool {
	bare := Ask{Demand: a.Demand}
	for range r.Plans(&bare) {
		return false
	}
	return true
}

// Takes reports whether the node has the CPU and memory for the pod, whatever there is of
// devices. There are no plans for those that don't.
func (r *Ranking) Takes(name string, a *Ask) bool {
	n := r.nodes[name]
	return n == nil || n.host.takes(a)
}

// takes reports whether the host has the CPU and memory, exactly.
func (h *Host) takes(a *Ask) bool {
	return (a.CPU == 0 || a.CPU <= h.CPU) && (a.Mem == 0 || a.Mem <= h.Mem)
}

// rooms are those of the nodes that have the CPU and memory.
func rooms(nodes map[string]*node, a *Ask, aside bool) (rooms []*placement.Node) {
	for _, n := range nodes {
		if n.room != nil && n.host.Aside == aside && n.host.takes(a) {
			rooms = append(rooms, n.room)
		}
	}
	return rooms
}
