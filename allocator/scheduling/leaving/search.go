// SPDX-License-Identifier: Apache-2.0

package leaving

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/v1alpha1"
)

// maxLooks bounds a search, since tenants make the pods: how often it asks for the room, or has all
// leave. After so many it only completes what it has, and then some may leave that need not.
const maxLooks = 300

// search is for one pod on one node. Devices are numbered as in the ledger's status.
type search struct {
	c       *Candidates
	demand  *placement.Demand
	ledger  *v1alpha1.SliceLedger
	room    Room
	looks   int
	devices []device
	// lead is the need by which devices are compared: that of the largest container.
	lead int
	// items are what can leave, pods where to find a pod of the node among them.
	items []item
	pods  map[types.UID]local
	// single and parts are where items have their first pod and part, allocated at once.
	single []Pod
	parts  []part
	// limits are how many pods each gang can spare still, and then each budget lets be evicted.
	limits []int
	// plan is the latest that fits found.
	plan placement.Plan
}

// Search finds a choice of little cost on the node, which is to end no pod where the demand fits
// as it is. Its priority is the lowest with which there is one; its pods are nearly the fewest.
// It is false where the demand does not fit without all candidates, or where gangs and budgets keep
// too many of them. No pod ends in vain: if any one victim stayed, or any gang that ends as a
// whole, the demand would not fit.
func (c *Candidates) Search(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room Room) (Choice, bool) {
	lead, able := &demand.Containers[demand.Lead()], v1alpha1.DeviceCount(0)
	for i := range ledger.Status.Devices {
		if d := &ledger.Status.Devices[i]; demand.Allows(lead, &placement.Device{UUID: d.UUID, Model: d.Model}) {
			able++
		}
	}
	if able < lead.Share.GPUs {
		return Choice{}, false // of another model, which is soon said
	}
	now := room(ledger)
	if now != nil {
		if plan, ok := placement.Fit(demand, now); ok {
			return Choice{Plan: plan, Cost: None}, true
		}
	}
	s := &search{c: c, demand: demand, ledger: ledger, room: room}
	if !s.prepare(now) {
		return Choice{}, false
	}
	floors := make([]int32, len(s.items))
	for i := range s.items {
		floors[i] = s.items[i].Priority
	}
	slices.Sort(floors)
	floors = slices.Compact(floors)
	lowest := func(enough func() bool) int {
		return sort.Search(len(floors), func(i int) bool { s.leave(floors[i], nil); return enough() })
	}
	at := lowest(s.enough)
	if at < len(floors) && !s.solve(floors[at]) {
		// There is more to it than amounts.
		at = max(at+1, lowest(s.fits))
		for at < len(floors) && !s.solve(floors[at]) {
			at++
		}
	}
	if at >= len(floors) {
		return Choice{}, false
	}
	return s.choice(), true
}

// prepare finds the items; false where no choice of them can do.
func (s *search) prepare(now *placement.Node) bool {
	for g := range s.c.Gangs {
		s.limits = append(s.limits, max(s.c.Gangs[g].Spare, 0))
	}
	s.limits = append(s.limits, s.c.Budgets...)
	s.devices = make([]device, len(s.ledger.Status.Devices))
	for d := range s.devices {
		s.devices[d].uuid = s.ledger.Status.Devices[d].UUID
	}
	held := 0
	for i := range s.ledger.Spec.Devices {
		held += len(s.ledger.Spec.Devices[i].Slices)
	}
	s.items, s.pods = make([]item, 0, held), make(map[types.UID]local, held)
	s.single, s.parts = make([]Pod, 0, held), make([]part, 0, held)
	gangs := map[int]int{}
	for i := range s.ledger.Spec.Devices {
		granted := &s.ledger.Spec.Devices[i]
		d := slices.IndexFunc(s.devices, func(d device) bool { return d.uuid == granted.UUID })
		if d < 0 {
			continue // it is no longer there
		}
		s.devices[d].slices = len(granted.Slices)
		for j := range granted.Slices {
			pod, has := granted.Slices[j].Pod, placement.AmountOf(&granted.Slices[j])
			l, known := s.pods[pod]
			if !known {
				l = s.add(pod, gangs)
				s.pods[pod] = l
			}
			if l.leaves() {
				s.devices[d].ends = s.devices[d].ends.Plus(has)
			}
			for _, i := range []int{l.alone, l.whole} {
				if i >= 0 {
					s.items[i].hold(d, has)
				}
			}
		}
	}
	most := s.without(local.leaves)
	if most == nil || len(s.items) == 0 {
		return false
	}
	needs := 1
	if !s.demand.SameGPU {
		needs, s.lead = len(s.demand.Containers), s.demand.Lead()
	}
	all := make([]need, needs*len(s.devices))
	for d := range s.devices {
		dev := &s.devices[d]
		dev.now, dev.needs = now.Device(dev.uuid), all[d*needs:(d+1)*needs]
		if most := most.Device(dev.uuid); most != nil {
			dev.most = *most
			for i := range dev.needs {
				n := &dev.needs[i]
				if n.Amount, n.may = s.demand.Need(i, &dev.most); dev.now != nil {
					_, n.now = s.demand.Need(i, dev.now)
				}
			}
		}
		dev.give(placement.Amount{})
	}
	for i := range s.items {
		it := &s.items[i]
		for _, p := range it.on {
			dev := &s.devices[p.device]
			it.size = max(it.size, sizeOf(p.has, dev.needs[s.lead].Minus(dev.free)))
		}
	}
	return true
}

// solve has items up to a priority leave so that the demand fits, as few as it can; false where it
// finds none. Gangs end as a whole only where members that they can spare are not enough.
func (s *search) solve(floor int32) bool {
	broken := make([]bool, len(s.c.Gangs))
	if s.looks >= maxLooks {
		return false
	}
	if s.try(floor, broken) {
		return true
	}
	for i := range s.items {
		if it := &s.items[i]; it.whole {
			broken[it.gang] = true
		}
	}
	if !slices.Contains(broken, true) || !s.try(floor, broken) {
		return false
	}
	// With the members that one can spare, and other gangs, it may do without one.
	for i := range s.items {
		if it := &s.items[i]; it.whole && it.out && s.looks < maxLooks {
			for j := range s.items {
				if one := &s.items[j]; one.whole {
					broken[one.gang] = one.out && j != i
				}
			}
			if !s.try(floor, broken) {
				broken[it.gang] = true
				if !s.try(floor, broken) {
					return false
				}
			}
		}
	}
	return true
}

// try has all items up to the priority leave, gangs that are broken as a whole, and then has stay
// what need not leave or is beyond a limit. It reports whether the demand fits.
func (s *search) try(floor int32, broken []bool) bool {
	s.looks++
	if s.leave(floor, broken); !s.enough() {
		return false
	}
	order := s.order()
	if s.stay(order, s.enough); !s.within() || s.fits() {
		return s.within()
	}
	// There is more to it than amounts, such as the places of MIG. The longest run that can stay at
	// once spares asking for each.
	again := func(stay int) {
		s.leave(floor, broken)
		for _, i := range order[:stay] {
			s.move(i, false)
		}
	}
	n := 0
	if again(0); !s.fits() {
		return false
	} else if s.within() {
		n = sort.Search(len(order), func(n int) bool { again(n + 1); return !s.fits() })
		again(n)
	}
	s.stay(order[n:], func() bool { return s.looks < maxLooks && s.fits() })
	return s.within() && s.fits()
}

// leave has those items leave, and no others. Without broken these are all single pods, and the gangs of
// which none may leave alone.
func (s *search) leave(floor int32, broken []bool) {
	for i := range s.items {
		it := &s.items[i]
		out := it.Priority <= floor
		switch {
		case it.gang < 0:
		case broken != nil:
			out = out && it.whole == broken[it.gang]
		case it.whole:
			out = out && s.c.Gangs[it.gang].Spare < 1
		}
		s.move(i, out)
	}
}

// move has an item leave, or stay.
func (s *search) move(i int, out bool) {
	it, sign := &s.items[i], 1
	if it.out == out {
		return
	}
	if it.out = out; !out {
		sign = -1
	}
	for _, u := range it.uses {
		s.limits[u.limit] -= sign * u.pods
	}
	for _, p := range it.on {
		dev := &s.devices[p.device]
		if out {
			dev.give(dev.gone.Plus(p.has))
		} else {
			dev.give(dev.gone.Minus(p.has))
		}
	}
}

// enough reports whether by amounts each container has its devices. Where it has, the demand still
// may not fit.
func (s *search) enough() bool {
	for i := range s.devices[0].needs {
		found := v1alpha1.DeviceCount(0)
		for d := range s.devices {
			if s.devices[d].has(i) {
				found++
			}
		}
		if found < s.demand.Containers[i].Share.GPUs {
			return false
		}
	}
	return true
}

// within reports whether what leaves is within all limits.
func (s *search) within() bool {
	return !slices.ContainsFunc(s.limits, func(n int) bool { return n < 0 })
}

// order is in which order those that leave may stay: whole gangs, then what has nothing on the
// devices on which least has to end, and of those the small ones.
func (s *search) order() (order []int) {
	for i := range s.items {
		if s.items[i].out {
			order = append(order, i)
		}
	}
	worth := func(it *item) float64 { return float64(it.Pods) / max(it.size, 1e-9) }
	slices.SortFunc(order, func(a, b int) int {
		x, y := &s.items[a], &s.items[b]
		return cmp.Or(cmp.Compare(y.Broken, x.Broken), cmp.Compare(worth(y), worth(x)), cmp.Compare(y.lost(), x.lost()), cmp.Compare(x.pods[0].UID, y.pods[0].UID))
	})
	s.rank(order)
	rank := func(it *item) int {
		least := len(s.devices)
		for _, p := range it.on {
			least = min(least, s.devices[p.device].rank)
		}
		return least
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := &s.items[a], &s.items[b]
		return cmp.Or(cmp.Compare(y.Broken, x.Broken), cmp.Compare(rank(y), rank(x)))
	})
	return order
}

// rank ranks the devices by what would have to leave each alone, if of those on it the first that can
// stay do.
func (s *search) rank(order []int) {
	devices, costs := make([]int, len(s.devices)), make([]Cost, len(s.devices))
	gone := make([]placement.Amount, len(s.devices))
	for d := range s.devices {
		devices[d], gone[d] = d, s.devices[d].gone
		if !s.devices[d].has(s.lead) {
			costs[d] = Cost{Priority: math.MaxInt32}
		}
	}
	for _, i := range order {
		cost := s.items[i].Cost
		cost.Priority = 0 // it is within the one that has to end anyhow
		for _, p := range s.items[i].on {
			dev, before := &s.devices[p.device], s.devices[p.device].gone
			if dev.give(before.Minus(p.has)); !dev.has(s.lead) {
				dev.give(before)
				costs[p.device] = costs[p.device].plus(cost)
			}
		}
	}
	slices.SortStableFunc(devices, func(a, b int) int { return costs[a].Compare(costs[b]) })
	for rank, d := range devices {
		s.devices[d].rank = rank
		s.devices[d].give(gone[d])
	}
}

// stay has those stay that are beyond a limit, and then all without which it is enough.
func (s *search) stay(order []int, enough func() bool) {
	for _, all := range []bool{false, true} {
		for _, i := range order {
			it := &s.items[i]
			if it.out && (all || slices.ContainsFunc(it.uses, func(u use) bool { return s.limits[u.limit] < 0 })) {
				if s.move(i, false); !enough() {
					s.move(i, true)
				}
			}
		}
	}
}

// without is the room when such pods are gone, nil when it takes nothing.
func (s *search) without(gone func(local) bool) *placement.Node {
	s.looks++
	return s.room(grants.Without(s.ledger, func(pod types.UID) bool { l, ok := s.pods[pod]; return ok && gone(l) }))
}

// fits reports whether the demand fits once the items have left, and keeps its plan.
func (s *search) fits() (ok bool) {
	if !s.enough() {
		return false
	}
	left := s.without(func(l local) bool {
		return l.alone >= 0 && s.items[l.alone].out || l.whole >= 0 && s.items[l.whole].out
	})
	if left == nil {
		return false
	}
	s.plan, ok = placement.Fit(s.demand, left)
	return ok
}

// choice is what leaves, and the plan of the last look.
func (s *search) choice() Choice {
	c := Choice{Plan: s.plan, Cost: None}
	for i := range s.items {
		if s.items[i].out {
			c.Cost = c.Cost.plus(s.items[i].Cost)
			for _, p := range s.items[i].pods {
				c.Victims = append(c.Victims, p.UID)
			}
		}
	}
	slices.Sort(c.Victims)
	return c
}
