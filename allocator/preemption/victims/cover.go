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
	from   int
	// least are the devices with what is taken gone, most with all options gone too.
	least, most *placement.Node
	out         view
	// ask the room: where there are places for instances amounts are not enough.
	ask     bool
	options []option
	// need is what the only device must have free, as far as amounts add up to it.
	need amount
	// best is the cheapest so far, if found; better: it was found here.
	best          []int
	cost          Cost
	found, better bool
}

// option is an item, with what it frees of the devices.
type option struct {
	item   int
	amount amount
	// size is how much of what is lacking that is.
	size float64
	// large is the most that this one or a later one frees, loss the least that is lost.
	large amount
	loss  float64
}

// cover is for the devices in that range.
func (s *search) cover(demand *placement.Demand, from, to int) *cover {
	v := &cover{options: make([]option, 0, 32), search: s, demand: demand, from: from, ask: cut(s.most[from:to])}
	v.out = view{placement.Node{Devices: slices.Clone(s.in.Devices)}, slices.Clone(s.in.freed)}
	v.least = &placement.Node{Name: s.in.Name, Devices: s.in.Devices[from:to]}
	v.most = &placement.Node{Name: s.in.Name, Devices: v.out.Devices[from:to]}
	for d := from; d < to; d++ {
		for _, i := range s.at[d] {
			it := &s.items[i]
			if it.Priority > s.floor || s.taken[i] || !s.lets(it) {
				continue
			}
			at := slices.IndexFunc(it.holds, func(h hold) bool { return from <= h.device && h.device < to })
			if it.holds[at].device == d { // an item once
				v.options = append(v.options, option{item: i, amount: it.holds[at].amount})
				s.shift(&v.out, i, true)
			}
		}
	}
	return v
}

// run searches. What was found before is not found again, nor what costs as much.
func (v *cover) run() {
	if !v.may() {
		return
	}
	lack := amount{v1alpha1.WholeGPU, v.most.Devices[0].Mem, 1}
	if plan, ok := placement.Fit(v.demand, &placement.Node{Devices: v.most.Devices[:1]}); ok && len(v.most.Devices) == 1 {
		for _, g := range plan.Grants {
			v.need = v.need.plus(amount{g.Core - g.ReuseCore, g.Mem - g.ReuseMem, 1})
		}
		lack = v.need.minus(roomOn(&v.least.Devices[0]))
		// Where the last slice gone gives more than amounts do, these bound nothing.
		if now := v.now[v.from]; now == nil || v.need.minus(roomOn(now)).minus(v.out.freed[v.from]).most(amount{}) != (amount{}) {
			v.need = amount{}
		}
	}
	for k := range v.options {
		v.options[k].size = v.options[k].amount.part(lack)
	}
	// Single pods before gangs, and large ones first: the first choice is a good one then.
	slices.SortFunc(v.options, func(a, b option) int {
		x, y := &v.items[a.item], &v.items[b.item]
		return cmp.Or(cmp.Compare(x.Broken, y.Broken), cmp.Compare(b.size, a.size), cmp.Compare(x.Loss, y.Loss), cmp.Compare(x.pods[0].UID, y.pods[0].UID))
	})
	last := option{loss: math.Inf(1)}
	for k := len(v.options) - 1; k >= 0; k-- {
		o := &v.options[k]
		o.large, o.loss = o.amount.most(last.large), min(v.items[o.item].Loss, last.loss)
		last = *o
	}
	_, cost := v.chosen()
	v.walk(0, cost, true)
}

// may reports whether the demand may fit when all options are gone.
func (v *cover) may() bool {
	if !v.demand.MayFit(v.most) {
		return false
	}
	// Of several instances one may be in the way of another, so that less gone can be more.
	if !v.ask || len(v.demand.Containers) > 1 || v.rooms >= maxRooms {
		return true
	}
	for _, o := range v.options {
		v.taken[o.item] = true
	}
	ok := v.fit()
	for _, o := range v.options {
		v.taken[o.item] = false
	}
	return ok
}

// walk decides on the options from k on. fresh: what is taken has not been looked at.
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
	if k == len(v.options) {
		return
	}
	o := &v.options[k]
	it := &v.items[o.item]
	more, ok := v.need.minus(roomOn(&v.least.Devices[0])).times(o.large)
	if !ok {
		return
	}
	more = max(more, 1)
	least := Cost{cost.Priority, cost.Broken + it.Broken, cost.Pods + more, cost.Loss + float64(more)*o.loss, cost.Grace}
	if v.found && least.Compare(v.cost) >= 0 {
		return
	}
	// Where members have ended that the gang could spare, it can end as a whole all the same.
	spared := v.spared(it)
	for _, i := range spared {
		v.drop(i)
		cost.Pods, cost.Loss = cost.Pods-1, cost.Loss-v.items[i].Loss // its grace is one of the gang's
	}
	lets := v.lets(it)
	if lets {
		v.take(o.item)
		v.walk(k+1, cost.plus(it.Cost), true)
		v.drop(o.item)
	}
	for _, i := range spared {
		v.take(i)
		cost = cost.plus(v.items[i].Cost)
	}
	if lets && v.steps > v.limit {
		return
	}
	v.shift(&v.out, o.item, false)
	if v.demand.MayFit(v.most) {
		v.walk(k+1, cost, false)
	}
	v.shift(&v.out, o.item, true)
}

// spared are the members of a gang that are taken one by one.
func (v *cover) spared(whole *item) (members []int) {
	if !whole.whole {
		return nil
	}
	for i := range v.items {
		if v.taken[i] && v.items[i].gang == whole.gang {
			members = append(members, i)
		}
	}
	return members
}

// enough reports whether the demand fits with what is taken gone.
func (v *cover) enough() bool {
	return v.fits(v.demand, v.least) && (!v.ask || v.rooms < maxRooms && v.fit())
}

// fit asks the room whether the demand fits with what is taken gone.
func (v *cover) fit() bool {
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
	return placement.Fits(v.demand, left)
}

// solve takes the items with which the demand fits; false where it finds none.
func (s *search) solve() bool {
	all := s.cover(s.demand, 0, len(s.most))
	if s.demand.SameGPU || s.demand.Single() {
		for d := range s.most {
			one := s.cover(s.demand, d, d+1)
			one.found, one.cost = all.found, all.cost
			if one.run(); one.better {
				all.found, all.cost, all.best = true, one.cost, one.best
			}
		}
	} else if s.several(all); !all.found {
		// Whatever is possible, as budgets may be what is short.
		all.run()
	}
	if all.found {
		s.choose(all.best)
	}
	return all.found
}

// several takes the devices on which the least has to end, within each set of devices that the
// demand may be on, and keeps the set where that costs least.
func (s *search) several(all *cover) {
	lead := s.demand.Lead()
	c := s.demand.Containers[lead]
	c.Share.GPUs = 1
	price := make([]Cost, len(s.most))
	var order, others []int
	for d := range s.most {
		if _, _, ok := s.demand.Alone(lead, &s.most[d]); ok {
			order = append(order, d)
		} else {
			others = append(others, d)
		}
	}
	// Where all are needed there is nothing to compare.
	if len(order) > int(s.demand.Containers[lead].Share.GPUs) {
		for _, d := range order {
			one := s.cover(&placement.Demand{Containers: []placement.Container{c}}, d, d+1)
			one.ask = false
			if one.run(); one.found {
				price[d] = one.cost
			} else {
				price[d] = Cost{Priority: math.MaxInt32, Pods: math.MaxInt}
			}
		}
		slices.SortStableFunc(order, func(a, b int) int { return price[a].Compare(price[b]) })
	}
	order = append(order, others...)
	sets := s.demand.Domains(&all.out.Node)
	if sets == nil {
		sets = []uint64{^uint64(0)}
	}
	for _, set := range sets {
		blocked := make([]bool, len(order))
		for d := range blocked {
			blocked[d] = set>>d&1 == 0
		}
		s.exchange(all, order, blocked)
	}
}

// exchange takes the first devices of the order on which the demand fits and that are not blocked,
// and then exchanges one for others as long as that costs less.
func (s *search) exchange(all *cover, order []int, blocked []bool) {
	devices, ok := s.onCheapest(all, order, blocked)
	for again := ok; again; {
		again = false
		for _, d := range devices {
			if blocked[d] || s.steps > s.limit {
				continue
			}
			try := slices.Clone(blocked)
			try[d] = true
			if next, better := s.onCheapest(all, order, try); better {
				blocked, devices, again = try, next, true
				break
			}
		}
	}
}

// onCheapest clears the first devices of the order on which the demand fits then, and of these
// only what is needed; blocked ones stay as they are. It keeps the choice in all, and reports
// the devices where pods end, if it costs less than the one there.
func (s *search) onCheapest(all *cover, order []int, blocked []bool) ([]int, bool) {
	node := &placement.Node{Name: s.in.Name, Devices: slices.Clone(s.in.Devices)}
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
	for d := range s.most {
		part := s.part(&plan, s.most[d].UUID)
		if len(part.Containers) == 0 {
			continue
		}
		one := s.cover(part, d, d+1)
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
