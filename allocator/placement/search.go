// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// maxSteps bounds the search on one node. Packing several containers on several
// devices is a hard problem in general; real pods take a few dozen steps. A pod
// that would take more is treated as one that does not fit.
const maxSteps = 20_000

// search looks for devices on one node: containers in turn, each with its devices
// in order of preference, going back when a later container finds no room.
type search struct {
	demand *Demand
	node   *Node
	runs   []span
	phases int
	// order in which containers are served: app containers and sidecars first, so
	// that init containers can reuse their room; the larger first.
	order []int
	// loads[d][p] is this pod's load on device d in phase p.
	loads [][]load
	// slices[d] is the number of this pod's slices on device d.
	slices []int
	// chosen[i] are the devices of container i.
	chosen [][]int
	steps  int
}

// Fit plans the demand on the node; false when it does not fit.
func Fit(demand *Demand, node *Node) (Plan, bool) {
	s := newSearch(demand, node)
	if !s.place(0) {
		return Plan{}, false
	}
	plan := Plan{Node: node.Name, Grants: s.book()}
	s.weigh(&plan)
	return plan, true
}

// FitOn plans the demand on the node with its largest container on these devices;
// false when that does not fit.
func FitOn(demand *Demand, node *Node, devices []int) (Plan, bool) {
	if len(demand.Containers) == 1 {
		return fitAlone(demand, node, devices)
	}
	s := newSearch(demand, node)
	if !s.fix(s.order[0], devices) || !s.place(1) {
		return Plan{}, false
	}
	return Plan{Node: node.Name, Grants: s.book()}, true
}

// fitAlone is FitOn for one container, which leaves nothing to search for.
func fitAlone(demand *Demand, node *Node, devices []int) (Plan, bool) {
	c := &demand.Containers[0]
	if len(devices) != int(c.Share.GPUs) {
		return Plan{}, false
	}
	plan := Plan{Node: node.Name, Grants: make([]Grant, 0, len(devices))}
	for i, d := range devices {
		dev := &node.Devices[d]
		own, ok := c.load(dev)
		if !ok || !demand.allows(dev) || dev.Slots <= 0 || !own.within(dev) || slices.Contains(devices[:i], d) {
			return Plan{}, false
		}
		plan.Grants = append(plan.Grants, Grant{Container: c.Name, UUID: dev.UUID, Index: dev.Index, Core: own.core, Mem: own.mem, Mode: c.Mode})
	}
	return plan, true
}

func newSearch(demand *Demand, node *Node) *search {
	s := &search{
		demand: demand,
		node:   node,
		order:  make([]int, len(demand.Containers)),
		loads:  make([][]load, len(node.Devices)),
		slices: make([]int, len(node.Devices)),
		chosen: make([][]int, len(demand.Containers)),
	}
	s.runs, s.phases = spans(demand.Containers)
	for d := range s.loads {
		s.loads[d] = make([]load, s.phases)
	}
	demand.sort(s.order)
	return s
}

// sort fills order with the containers in the order in which they are served.
func (d *Demand) sort(order []int) {
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		ca, cb := &d.Containers[a], &d.Containers[b]
		return cmp.Or(
			cmp.Compare(b2i(ca.Kind == Init), b2i(cb.Kind == Init)),
			cmp.Compare(cb.Share.GPUs, ca.Share.GPUs),
			cmp.Compare(cb.Share.Core, ca.Share.Core),
			cmp.Compare(cb.Share.MemPercent, ca.Share.MemPercent),
			cmp.Compare(cb.Share.MemMiB, ca.Share.MemMiB),
		)
	})
}

// Lead is the container that is served first: the largest.
func (d *Demand) Lead() int {
	if len(d.Containers) == 1 {
		return 0
	}
	order := make([]int, len(d.Containers))
	d.sort(order)
	return order[0]
}

// place serves the containers from the n-th in order on.
func (s *search) place(n int) bool {
	if n == len(s.order) {
		return true
	}
	i := s.order[n]
	return s.pick(n, s.preferred(i), int(s.demand.Containers[i].Share.GPUs))
}

// fix serves container i with these devices and no others.
func (s *search) fix(i int, devices []int) bool {
	if len(devices) != int(s.demand.Containers[i].Share.GPUs) {
		return false
	}
	for _, d := range devices {
		if d < 0 || slices.Contains(s.chosen[i], d) || !slices.Contains(s.preferred(i), d) {
			return false
		}
		s.add(i, d)
	}
	return true
}

// pick takes left more devices for the n-th container, out of candidates and in
// their order, and then serves the rest.
func (s *search) pick(n int, candidates []int, left int) bool {
	if left == 0 {
		return s.place(n + 1)
	}
	i := s.order[n]
	failed := -1
	for k, d := range candidates {
		if len(candidates)-k < left {
			return false
		}
		if failed >= 0 && s.alike(failed, d) {
			continue
		}
		if s.steps++; s.steps > maxSteps {
			return false
		}
		s.add(i, d)
		if s.pick(n, candidates[k+1:], left-1) {
			return true
		}
		s.drop(i, d)
		failed = d
	}
	return false
}

// preferred are the devices that can take container i now, best first.
func (s *search) preferred(i int) []int {
	type choice struct {
		device int
		more   load
		left   int64
	}
	var choices []choice
	for d := range s.node.Devices {
		dev := &s.node.Devices[d]
		if !s.demand.allows(dev) || s.slices[d] >= dev.Slots {
			continue
		}
		after, ok := s.peakWith(i, d)
		if !ok || !after.within(dev) {
			continue
		}
		before := s.peak(d)
		choices = append(choices, choice{d, load{after.core - before.core, after.mem - before.mem}, dev.leftover(after)})
	}
	reuses := s.demand.Containers[i].Kind == Init
	slices.SortStableFunc(choices, func(a, b choice) int {
		if reuses {
			if c := cmp.Or(cmp.Compare(a.more.core, b.more.core), cmp.Compare(a.more.mem, b.more.mem)); c != 0 {
				return c
			}
		}
		return s.demand.prefer(a.left, b.left)
	})
	devices := make([]int, len(choices))
	for k, c := range choices {
		devices[k] = c.device
	}
	return devices
}

// prefer orders two leftovers: pack takes the least, spread the most.
func (d *Demand) prefer(a, b int64) int {
	if d.Policy == v1alpha1.PolicySpread {
		a, b = b, a
	}
	return cmp.Compare(a, b)
}

func (d *Demand) allows(dev *Device) bool {
	return d.Models.Allows(dev.Model) && d.UUIDs.Allows(dev.UUID)
}

func (s *search) peak(d int) load {
	var top load
	for _, l := range s.loads[d] {
		top = top.most(l)
	}
	return top
}

// peakWith is the peak on device d if container i were on it too.
func (s *search) peakWith(i, d int) (load, bool) {
	own, ok := s.demand.Containers[i].load(&s.node.Devices[d])
	top := s.peak(d)
	for p := s.runs[i].from; p <= s.runs[i].to; p++ {
		top = top.most(s.loads[d][p].plus(own))
	}
	return top, ok
}

func (s *search) add(i, d int) {
	own, _ := s.demand.Containers[i].load(&s.node.Devices[d])
	for p := s.runs[i].from; p <= s.runs[i].to; p++ {
		s.loads[d][p] = s.loads[d][p].plus(own)
	}
	s.slices[d]++
	s.chosen[i] = append(s.chosen[i], d)
}

func (s *search) drop(i, d int) {
	own, _ := s.demand.Containers[i].load(&s.node.Devices[d])
	for p := s.runs[i].from; p <= s.runs[i].to; p++ {
		s.loads[d][p] = s.loads[d][p].plus(load{-own.core, -own.mem})
	}
	s.slices[d]--
	s.chosen[i] = s.chosen[i][:len(s.chosen[i])-1]
}

// alike tells whether two allowed devices are interchangeable for what is still
// to be placed: where one led nowhere the other will too.
func (s *search) alike(a, b int) bool {
	x, y := &s.node.Devices[a], &s.node.Devices[b]
	return x.Mem == y.Mem && x.FreeCore == y.FreeCore && x.FreeMem == y.FreeMem &&
		x.Slots-s.slices[a] == y.Slots-s.slices[b] && slices.Equal(s.loads[a], s.loads[b])
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
