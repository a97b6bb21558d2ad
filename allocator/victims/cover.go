// SPDX-License-Identifier: Apache-2.0

package victims

import (
	"cmp"
	"math"
	"slices"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// cover searches, by branch and bound, the cheapest items beside those that are taken with which
// a demand fits on some devices of the node.
type cover struct {
	*search
	demand *placement.Demand
	// least are the devices with what is taken gone, most with all gone that may.
	least, most *placement.Node
	out         view
	cut, rough  bool
	// items in the order in which they are tried: single pods before gangs, large ones first.
	items  []int
	single int
	// rest[k] bounds the items from k on.
	rest []bound
	// need is what the only device must have free, as far as amounts add up to it.
	need amount
	// best is the cheapest so far, if found; better: it was found here.
	best          []int
	cost          Cost
	found, better bool
}

// bound is the most that one of some items frees of the only device, and the least that is lost
// with one.
type bound struct {
	large amount
	loss  float64
}

// cover is for the devices in that range, with these items.
func (s *search) cover(demand *placement.Demand, from, to int, items []int) *cover {
	v := &cover{search: s, demand: demand, cut: cut(s.most.Devices[from:to])}
	v.out = view{placement.Node{Devices: slices.Clone(s.in.Devices)}, slices.Clone(s.in.freed)}
	v.least = &placement.Node{Name: s.most.Name, Devices: s.in.Devices[from:to]}
	v.most = &placement.Node{Name: s.most.Name, Devices: v.out.Devices[from:to]}
	only := to - from - 1
	on := func(i int) (a amount) {
		for _, h := range s.items[i].holds {
			if h.device == from && only == 0 {
				return h.amount
			}
			a = a.plus(h.amount)
		}
		return a
	}
	for _, i := range items {
		if s.taken[i] || !s.may(&s.items[i]) || !slices.ContainsFunc(s.items[i].holds, func(h hold) bool { return from <= h.device && h.device < to }) {
			continue
		}
		v.items = append(v.items, i)
		s.shift(&v.out, i, false)
		if !s.items[i].whole {
			v.single++
		}
	}
	lack := amount{100, 1 << 20, 1}
	if only == 0 {
		if plan, ok := placement.Fit(demand, &placement.Node{Devices: s.most.Devices[from:to]}); ok && s.now[from] != nil {
			for _, g := range plan.Grants {
				v.need = v.need.plus(amount{g.Core - g.ReuseCore, g.Mem - g.ReuseMem, 1})
			}
			lack = v.need.minus(roomOn(&v.least.Devices[0]))
			// Where the last slice gone gives more than amounts do, these bound nothing.
			if v.need.minus(roomOn(s.now[from])).minus(v.out.freed[from]).most(amount{}) != (amount{}) {
				v.need = amount{}
			}
		}
	}
	size := make(map[int]float64, len(v.items))
	for _, i := range v.items {
		size[i] = on(i).part(lack)
	}
	slices.SortFunc(v.items, func(a, b int) int {
		x, y := &s.items[a], &s.items[b]
		return cmp.Or(cmp.Compare(x.Broken, y.Broken), cmp.Compare(size[b], size[a]), cmp.Compare(x.Loss, y.Loss), cmp.Compare(x.pods[0].UID, y.pods[0].UID))
	})
	v.rest = make([]bound, len(v.items)+1)
	v.rest[len(v.items)].loss = math.Inf(1)
	for k := len(v.items) - 1; k >= 0; k-- {
		v.rest[k] = bound{on(v.items[k]).most(v.rest[k+1].large), min(s.items[v.items[k]].Loss, v.rest[k+1].loss)}
	}
	return v
}

// run searches; what is found already need not be found again.
func (v *cover) run() {
	if _, cost := v.chosen(); v.demand.MayFit(v.most) {
		v.walk(0, cost, true)
	}
}

// walk decides on the items from k on. fresh: what is taken has not been looked at.
func (v *cover) walk(k int, cost Cost, fresh bool) {
	v.steps++
	if v.found && cost.Compare(v.cost) >= 0 {
		return
	}
	if fresh && v.enough() {
		v.best, _ = v.chosen()
		v.cost, v.found, v.better = cost, true, true
		return
	}
	if k == len(v.items) {
		return
	}
	more, ok := v.need.minus(roomOn(&v.least.Devices[0])).times(v.rest[k].large)
	if !ok {
		return
	}
	// At least one more item, and so many pods.
	least := cost
	least.Pods += max(more, 1)
	least.Loss += float64(max(more, 1)) * v.rest[k].loss
	if k >= v.single {
		least.Broken++
	}
	if v.found && least.Compare(v.cost) >= 0 {
		return
	}
	i := v.items[k]
	if v.may(&v.search.items[i]) {
		v.take(i)
		v.walk(k+1, cost.plus(v.search.items[i].Cost), true)
		v.drop(i)
		if v.steps > maxSteps {
			return
		}
	}
	v.shift(&v.out, i, true)
	if v.demand.MayFit(v.most) {
		v.walk(k+1, cost, false)
	}
	v.shift(&v.out, i, false)
}

// enough reports whether the demand fits with what is taken gone.
func (v *cover) enough() bool {
	switch {
	case !v.fits(v.demand, v.least):
		return false
	case v.rough || !v.doubt && !v.cut:
		return true
	case v.rooms >= maxRooms:
		return false
	}
	left := v.left()
	if left == nil {
		return false
	}
	if v.demand != v.search.demand {
		dev := left.Device(v.least.Devices[0].UUID)
		if dev == nil {
			return false
		}
		left = &placement.Node{Name: left.Name, Devices: []placement.Device{*dev}}
	}
	_, ok := placement.Fit(v.demand, left)
	return ok
}

// solve takes the items with which the demand fits; false where it finds none.
func (s *search) solve(all *cover, active []int) bool {
	all.found = false
	if s.demand.SameGPU || s.demand.Single() {
		for d := range s.most.Devices {
			one := s.cover(s.demand, d, d+1, active)
			one.found, one.cost = all.found, all.cost
			if one.run(); one.better {
				all.found, all.cost, all.best = true, one.cost, one.best
			}
		}
	} else {
		if all.found = s.several(all, active); !all.found || len(active) <= s.exact {
			all.run()
		}
	}
	s.choose(nil)
	if all.found {
		s.choose(all.best)
	}
	return all.found
}

// several takes the devices on which the least has to end, and then exchanges one for others
// as long as that costs less.
func (s *search) several(all *cover, active []int) bool {
	lead := s.demand.Lead()
	c := s.demand.Containers[lead]
	c.Share.GPUs = 1
	price := make([]Cost, len(s.most.Devices))
	order := make([]int, len(s.most.Devices))
	for d := range s.most.Devices {
		order[d], price[d] = d, Cost{Priority: math.MaxInt32, Pods: math.MaxInt}
		if _, _, ok := s.demand.Alone(lead, &s.most.Devices[d]); !ok {
			continue
		}
		one := s.cover(&placement.Demand{Containers: []placement.Container{c}}, d, d+1, active)
		one.rough = true
		if one.run(); one.found {
			price[d] = one.cost
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return price[a].Compare(price[b]) })
	blocked := make([]bool, len(order))
	devices, ok := s.onCheapest(all, active, order, blocked)
	for again := ok; again; {
		again = false
		for _, d := range devices {
			if blocked[d] || s.steps > maxSteps {
				continue
			}
			try := slices.Clone(blocked)
			try[d] = true
			if next, better := s.onCheapest(all, active, order, try); better {
				blocked, devices, again = try, next, true
				break
			}
		}
	}
	return ok
}

// onCheapest clears the first devices of the order on which the demand fits then, and of these
// only what is needed; blocked ones stay as they are. It keeps the choice in all, and reports
// the devices where somebody ends, if it costs less than the one there.
func (s *search) onCheapest(all *cover, active, order []int, blocked []bool) ([]int, bool) {
	node := &placement.Node{Name: s.most.Name, Devices: slices.Clone(s.in.Devices)}
	var plan placement.Plan
	fits := false
	for _, d := range order {
		if blocked[d] {
			continue
		}
		node.Devices[d] = all.out.Devices[d]
		if s.demand.MayFit(node) {
			if plan, fits = placement.Fit(s.demand, node); fits {
				break
			}
		}
	}
	if !fits {
		return nil, false
	}
	defer s.choose(nil)
	var devices []int
	for d := range s.most.Devices {
		part := s.part(&plan, s.most.Devices[d].UUID)
		if len(part.Containers) == 0 {
			continue
		}
		one := s.cover(part, d, d+1, active)
		if one.run(); !one.found {
			return nil, false
		}
		if before, _ := s.chosen(); len(one.best) > len(before) {
			devices = append(devices, d)
		}
		s.choose(one.best)
	}
	items, cost := s.chosen()
	if all.found && cost.Compare(all.cost) >= 0 {
		return nil, false
	}
	all.best, all.cost, all.found = items, cost, true
	return devices, true
}

// part is what the plan has on one device, as a demand of its own.
func (s *search) part(plan *placement.Plan, uuid string) *placement.Demand {
	part := &placement.Demand{Policy: s.demand.Policy, SameGPU: true}
	for _, c := range s.demand.Containers {
		if slices.ContainsFunc(plan.Grants, func(g placement.Grant) bool { return g.Container == c.Name && g.UUID == uuid }) {
			c.Share.GPUs = 1
			part.Containers = append(part.Containers, c)
		}
	}
	return part
}

// part is how much of what is lacking an amount is: the sum over its sides, 1 each at most.
func (a amount) part(lack amount) float64 {
	return part(a.core, lack.core) + part(a.mem, lack.mem) + part(a.slots, lack.slots)
}

func part[T v1alpha1.Percent | v1alpha1.MiB | int](a, lack T) float64 {
	if lack <= 0 {
		return 0
	}
	return min(1, float64(a)/float64(lack))
}
