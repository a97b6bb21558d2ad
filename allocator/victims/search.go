// SPDX-License-Identifier: Apache-2.0

package victims

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// Bounds of one search. Tenants make the pods and their sizes, and the best choice is a hard
// problem in general. After maxSteps a search goes on with the first choice that it comes to.
// After maxRooms it asks only for the room that its result leaves.
const (
	maxSteps = 20_000
	maxRooms = 300
)

// search is for one pod on one node.
type search struct {
	c      *Candidates
	demand *placement.Demand
	ledger *v1alpha1.SliceLedger
	room   Room
	// exact is up to how many items the choice for several devices is the best of all.
	exact int
	// most is the room when all are gone that may end. Devices are numbered by it.
	most *placement.Node
	// now are the devices as they are, nil while they take nothing, with so many slices each.
	now    []*placement.Device
	slices []int
	// items are what can be chosen, and floor is the priority that they have at most.
	items []item
	floor int32
	// doubt: amounts have shown more than there was, so the room is asked about each choice.
	doubt        bool
	steps, rooms int

	// taken are the items that are chosen at the moment; then gangs can spare so many, budgets
	// let so many be evicted, and the node is like in.
	taken         []bool
	spare, budget []int
	in            view
}

// item is a pod that ends alone, or a gang that ends as a whole.
type item struct {
	Cost
	pods    []Pod
	gang    int
	whole   bool
	budgets []use
	// holds are what it has of this node, one a device.
	holds []hold
}

type use struct{ budget, pods int }

type hold struct {
	device int
	amount amount
}

// view is the node without some items, as far as amounts can tell: the room is never more.
type view struct {
	placement.Node
	freed []amount
}

// Search finds the choice of least cost on the node; false where the pod does not fit, whoever
// ends. For a pod that needs one device no choice costs less, as long as the search stays
// within its bounds. For several devices the cheapest ones are taken, and then exchanged. Nobody
// ends in vain: if any one victim stayed, or any gang that ends as a whole, the pod would not fit.
func (c *Candidates) Search(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room Room) (Choice, bool) {
	s := &search{c: c, demand: demand, ledger: ledger, room: room, exact: 16}
	return s.run()
}

func (s *search) run() (Choice, bool) {
	now := s.room(s.ledger)
	if now != nil {
		if plan, ok := placement.Fit(s.demand, now); ok {
			return Choice{Plan: plan, Cost: none}, true
		}
	}
	if !s.prepare(now) {
		return Choice{}, false
	}
	priorities := make([]int32, len(s.items))
	for i := range s.items {
		priorities[i] = s.items[i].Priority
	}
	slices.Sort(priorities)
	for _, s.floor = range slices.Compact(priorities) {
		var active []int
		for i := range s.items {
			if s.items[i].Priority <= s.floor {
				active = append(active, i)
			}
		}
		all := s.cover(s.demand, 0, len(s.most.Devices), active)
		if !s.demand.MayFit(all.most) {
			continue
		}
		for _, s.doubt = range []bool{false, true} {
			found := s.solve(all, active)
			if !found {
				break
			}
			if choice, ok := s.finish(); ok {
				return choice, true
			}
		}
	}
	return Choice{}, false
}

// prepare finds the items; false where no choice of them can do.
func (s *search) prepare(now *placement.Node) bool {
	s.budget, s.spare = slices.Clone(s.c.Budgets), make([]int, len(s.c.Gangs))
	for g := range s.c.Gangs {
		s.spare[g] = s.c.Gangs[g].Spare
	}
	alone, whole, ends := map[types.UID]int{}, map[int]int{}, map[types.UID]bool{}
	for d := range s.ledger.Spec.Devices {
		for j := range s.ledger.Spec.Devices[d].Slices {
			p, ok := s.c.Pods[s.ledger.Spec.Devices[d].Slices[j].Pod]
			if _, seen := alone[p.UID]; !ok || seen {
				continue
			}
			alone[p.UID] = s.add(item{Cost: none, pods: []Pod{p}, gang: p.Gang}, ends)
			if p.Gang < 0 || !s.c.Gangs[p.Gang].Whole {
				continue
			}
			if _, seen := whole[p.Gang]; !seen {
				cost := none
				cost.Broken = 1
				whole[p.Gang] = s.add(item{Cost: cost, pods: s.c.Gangs[p.Gang].Pods, gang: p.Gang, whole: true}, ends)
			}
		}
	}
	if s.most = s.without(ends); s.most == nil || len(s.items) == 0 || !s.fits(s.demand, s.most) {
		return false
	}
	n := len(s.most.Devices)
	s.now, s.slices, s.taken = make([]*placement.Device, n), make([]int, n), make([]bool, len(s.items))
	for d := range s.most.Devices {
		s.now[d] = now.Device(s.most.Devices[d].UUID)
	}
	for i := range s.ledger.Spec.Devices {
		dev := &s.ledger.Spec.Devices[i]
		d := slices.IndexFunc(s.most.Devices, func(m placement.Device) bool { return m.UUID == dev.UUID })
		if d < 0 {
			continue
		}
		s.slices[d] = len(dev.Slices)
		for j := range dev.Slices {
			slice := &dev.Slices[j]
			if p, ok := s.c.Pods[slice.Pod]; ok {
				s.hold(alone[p.UID], d, slice)
				if it, ok := whole[p.Gang]; ok {
					s.hold(it, d, slice)
				}
			}
		}
	}
	s.in = view{placement.Node{Name: s.most.Name, Devices: make([]placement.Device, n)}, make([]amount, n)}
	for d := range n {
		s.show(&s.in, d)
	}
	return true
}

// add is the number of a new item, -1 where it may never end; else its pods are among the ends.
func (s *search) add(it item, ends map[types.UID]bool) int {
	for _, p := range it.pods {
		it.Cost = it.plus(Cost{Priority: p.Priority, Pods: 1, Loss: p.Loss})
		if p.Budget < 0 {
			continue
		}
		at := slices.IndexFunc(it.budgets, func(u use) bool { return u.budget == p.Budget })
		if at < 0 {
			at, it.budgets = len(it.budgets), append(it.budgets, use{budget: p.Budget})
		}
		it.budgets[at].pods++
	}
	if !s.may(&it) {
		return -1
	}
	for _, p := range it.pods {
		ends[p.UID] = true
	}
	s.items = append(s.items, it)
	return len(s.items) - 1
}

func (s *search) hold(i, device int, slice *v1alpha1.Slice) {
	if i < 0 {
		return
	}
	it := &s.items[i]
	if n := len(it.holds); n == 0 || it.holds[n-1].device != device {
		it.holds = append(it.holds, hold{device: device})
	}
	h := &it.holds[len(it.holds)-1]
	h.amount = h.amount.plus(sliceOf(slice))
}

// may reports whether the item may end beside those that are taken: members of a gang within
// what it can spare, or else all, and pods of a budget as many as it lets be evicted.
func (s *search) may(it *item) bool {
	switch {
	case it.gang < 0:
	case it.whole && s.spare[it.gang] < s.c.Gangs[it.gang].Spare, !it.whole && s.spare[it.gang] < 1:
		return false
	}
	return !slices.ContainsFunc(it.budgets, func(u use) bool { return s.budget[u.budget] < u.pods })
}

func (s *search) take(i int) {
	s.taken[i] = true
	s.count(&s.items[i], 1)
	s.shift(&s.in, i, false)
}

func (s *search) drop(i int) {
	s.taken[i] = false
	s.count(&s.items[i], -1)
	s.shift(&s.in, i, true)
}

func (s *search) count(it *item, n int) {
	if it.whole {
		s.spare[it.gang] -= n * (max(s.c.Gangs[it.gang].Spare, 0) + 1)
	} else if it.gang >= 0 {
		s.spare[it.gang] -= n
	}
	for _, u := range it.budgets {
		s.budget[u.budget] -= n * u.pods
	}
}

// choose makes these the items that are taken.
func (s *search) choose(items []int) {
	for i, taken := range s.taken {
		if taken {
			s.drop(i)
		}
	}
	for _, i := range items {
		s.take(i)
	}
}

// chosen are the items that are taken, and what they cost.
func (s *search) chosen() (items []int, cost Cost) {
	cost = none
	cost.Priority = s.floor
	for i, taken := range s.taken {
		if taken {
			items, cost = append(items, i), cost.plus(s.items[i].Cost)
		}
	}
	return items, cost
}

// shift takes an item out of a view, or puts it back.
func (s *search) shift(v *view, i int, back bool) {
	for _, h := range s.items[i].holds {
		if back {
			v.freed[h.device] = v.freed[h.device].minus(h.amount)
		} else {
			v.freed[h.device] = v.freed[h.device].plus(h.amount)
		}
		s.show(v, h.device)
	}
}

// show works out a device of a view.
func (s *search) show(v *view, d int) {
	now, most, freed := s.now[d], &s.most.Devices[d], v.freed[d]
	switch {
	case freed.slots == 0 && now != nil:
		v.Devices[d] = *now
	case freed.slots == 0:
		v.Devices[d] = *most
		v.Devices[d].Slots = 0
	case freed.slots >= s.slices[d] || now == nil:
		v.Devices[d] = *most
	default:
		room := roomOn(now).plus(freed).least(roomOn(most))
		v.Devices[d] = *now
		v.Devices[d].Cut = most.Cut
		v.Devices[d].FreeCore, v.Devices[d].FreeMem, v.Devices[d].Slots = room.core, room.mem, room.slots
	}
}

// fits reports whether the demand fits on devices as amounts show them. Which places there are
// on one in MIG mode only the room says.
func (s *search) fits(demand *placement.Demand, n *placement.Node) bool {
	return demand.MayFit(n) && (cut(n.Devices) || placement.Fits(demand, n))
}

func cut(devices []placement.Device) bool {
	for i := range devices {
		if devices[i].Cut != nil {
			return true
		}
	}
	return false
}

func (s *search) without(gone map[types.UID]bool) *placement.Node {
	s.rooms++
	return s.room(without(s.ledger, func(pod types.UID) bool { return gone[pod] }))
}

// left is the room that the taken items leave, nil when it takes nothing.
func (s *search) left() *placement.Node {
	gone := map[types.UID]bool{}
	for i, taken := range s.taken {
		if taken {
			for _, p := range s.items[i].pods {
				gone[p.UID] = true
			}
		}
	}
	return s.without(gone)
}

// plan is what the pod gets when the taken items are gone.
func (s *search) plan() (placement.Plan, bool) {
	left := s.left()
	if left == nil {
		return placement.Plan{}, false
	}
	return placement.Fit(s.demand, left)
}

// finish lets all stay that can, the most important first, and says who is left.
func (s *search) finish() (choice Choice, ok bool) {
	defer s.choose(nil)
	if choice.Plan, ok = s.plan(); !ok {
		return Choice{}, false
	}
	items, _ := s.chosen()
	slices.SortFunc(items, func(a, b int) int { return cmp.Or(s.items[b].Compare(s.items[a].Cost), cmp.Compare(a, b)) })
	for again := true; again; {
		again = false
		for _, i := range items {
			if !s.taken[i] {
				continue
			}
			s.drop(i)
			if s.fits(s.demand, &s.in.Node) && s.rooms < maxRooms {
				if plan, ok := s.plan(); ok {
					choice.Plan, again = plan, true
					continue
				}
			}
			s.take(i)
		}
	}
	choice.Cost = none
	for _, i := range items {
		if s.taken[i] {
			choice.Cost = choice.Cost.plus(s.items[i].Cost)
			for _, p := range s.items[i].pods {
				choice.Victims = append(choice.Victims, p.UID)
			}
		}
	}
	slices.Sort(choice.Victims)
	return choice, true
}
