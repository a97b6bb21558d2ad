// SPDX-License-Identifier: Apache-2.0

package victims

import (
	"cmp"
	"slices"
	"sort"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// Bounds of one search. Tenants make the pods and their sizes, and the best choice is a hard
// problem in general. After maxSteps, or half of them for several devices, a search goes on with
// the first choice that it comes to. After maxRooms it asks only for the rooms of its result.
const (
	maxSteps = 5_000
	maxRooms = 300
)

// search is for one pod on one node. Devices are numbered as in the ledger's status.
type search struct {
	c      *Candidates
	demand *placement.Demand
	ledger *v1alpha1.SliceLedger
	room   Room
	// now are the devices as they are, nil while they take nothing, with so many slices each;
	// most are the devices when all are gone that may end, which have ends of them.
	now    []*placement.Device
	slices []int
	most   []placement.Device
	ends   []amount
	// items are what can be chosen, at those of each device, pods where to find a pod of the
	// node among them, and floor is the priority up to which they are chosen.
	items        []item
	at           [][]int
	pods         map[types.UID]local
	floor        int32
	steps, limit int
	rooms        int

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

// local is a pod of the node: the items with which it ends, alone or with its gang, -1 for none.
type local struct{ alone, whole int }

func (l local) ends() bool { return l.alone >= 0 || l.whole >= 0 }

// view is the node without some items, as far as amounts can tell: the room is never more.
type view struct {
	placement.Node
	freed []amount
}

// Search finds the choice of least cost on the node, which is to end no pod where the demand fits
// as it is. It is false where the demand does not fit without all candidates, or where gangs and
// budgets keep too many of them. For a demand of one device no choice costs less, as long as the
// search stays within its bounds. For several devices the cheapest are taken, and then exchanged.
// No pod ends in vain: if any one victim stayed, or any gang that ends as a whole, the demand
// would not fit.
func (c *Candidates) Search(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room Room) (Choice, bool) {
	now := room(ledger)
	if now != nil {
		if plan, ok := placement.Fit(demand, now); ok {
			return Choice{Plan: plan, Cost: none}, true
		}
	}
	s := &search{c: c, demand: demand, ledger: ledger, room: room, limit: maxSteps}
	if !demand.Single() && !demand.SameGPU {
		s.limit /= 2
	}
	if !s.prepare(now) {
		return Choice{}, false
	}
	priorities := make([]int32, len(s.items))
	for i := range s.items {
		priorities[i] = s.items[i].Priority
	}
	slices.Sort(priorities)
	priorities = slices.Compact(priorities)
	first := sort.Search(len(priorities), func(i int) bool {
		s.floor = priorities[i]
		return s.cover(demand, 0, len(s.most)).may()
	})
	for _, s.floor = range priorities[first:] {
		if s.rooms < maxRooms && s.solve() {
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
		s.spare[g] = max(s.c.Gangs[g].Spare, 0)
	}
	n := len(s.ledger.Status.Devices)
	s.slices, s.ends, s.at = make([]int, n), make([]amount, n), make([][]int, n)
	most := 0
	for i := range s.ledger.Spec.Devices {
		most += len(s.ledger.Spec.Devices[i].Slices)
	}
	s.items, s.pods = make([]item, 0, most), make(map[types.UID]local, most)
	gangs := map[int]int{}
	for i := range s.ledger.Spec.Devices {
		dev := &s.ledger.Spec.Devices[i]
		d := slices.IndexFunc(s.ledger.Status.Devices, func(seen v1alpha1.DeviceStatus) bool { return seen.UUID == dev.UUID })
		if d < 0 {
			continue
		}
		s.slices[d] = len(dev.Slices)
		for j := range dev.Slices {
			l, known := s.pods[dev.Slices[j].Pod]
			if !known {
				l = s.add(dev.Slices[j].Pod, gangs)
				s.pods[dev.Slices[j].Pod] = l
			}
			s.hold(l.alone, d, &dev.Slices[j])
			s.hold(l.whole, d, &dev.Slices[j])
			if l.ends() {
				s.ends[d] = s.ends[d].plus(sliceOf(&dev.Slices[j]))
			}
		}
	}
	room := s.without(local.ends)
	if room == nil || len(s.items) == 0 {
		return false
	}
	s.now, s.most, s.taken = make([]*placement.Device, n), make([]placement.Device, n), make([]bool, len(s.items))
	s.in = view{placement.Node{Name: room.Name, Devices: make([]placement.Device, n)}, make([]amount, n)}
	for d := range n {
		uuid := s.ledger.Status.Devices[d].UUID
		s.now[d] = now.Device(uuid)
		if dev := room.Device(uuid); dev != nil {
			s.most[d] = *dev
		}
		s.show(&s.in, d)
	}
	return s.fits(s.demand, room)
}

// add notes a pod of the node, and the items with which it may end.
func (s *search) add(uid types.UID, gangs map[int]int) local {
	p, ok := s.c.Pods[uid]
	if !ok {
		return local{-1, -1}
	}
	l := local{s.addItem(item{Cost: none, pods: []Pod{p}, gang: p.Gang}), -1}
	if p.Gang < 0 || !s.c.Gangs[p.Gang].Whole {
		return l
	}
	if l.whole, ok = gangs[p.Gang]; !ok {
		cost := none
		cost.Broken = 1
		l.whole = s.addItem(item{Cost: cost, pods: s.c.Gangs[p.Gang].Pods, gang: p.Gang, whole: true})
		gangs[p.Gang] = l.whole
	}
	return l
}

// addItem is the number of a new item, -1 where it may never end.
func (s *search) addItem(it item) int {
	for _, p := range it.pods {
		it.Cost = it.plus(Cost{Priority: p.Priority, Pods: 1, Loss: p.Loss, Grace: p.Grace})
		if p.Budget < 0 {
			continue
		}
		at := slices.IndexFunc(it.budgets, func(u use) bool { return u.budget == p.Budget })
		if at < 0 {
			at, it.budgets = len(it.budgets), append(it.budgets, use{budget: p.Budget})
		}
		it.budgets[at].pods++
	}
	if !s.lets(&it) {
		return -1
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
		s.at[device] = append(s.at[device], i)
	}
	h := &it.holds[len(it.holds)-1]
	h.amount = h.amount.plus(sliceOf(slice))
}

// lets reports whether the item may end beside those that are taken: members of a gang within
// what it can spare, or else all, and pods of a budget as many as it lets be evicted.
func (s *search) lets(it *item) bool {
	if it.gang >= 0 && (it.whole && s.spare[it.gang] < s.c.Gangs[it.gang].Spare || !it.whole && s.spare[it.gang] < 1) {
		return false
	}
	return !slices.ContainsFunc(it.budgets, func(u use) bool { return s.budget[u.budget] < u.pods })
}

func (s *search) take(i int) { s.turn(i, true) }
func (s *search) drop(i int) { s.turn(i, false) }

func (s *search) turn(i int, taken bool) {
	it, n := &s.items[i], 1
	if !taken {
		n = -1
	}
	s.taken[i] = taken
	if it.whole {
		s.spare[it.gang] -= n * (max(s.c.Gangs[it.gang].Spare, 0) + 1)
	} else if it.gang >= 0 {
		s.spare[it.gang] -= n
	}
	for _, u := range it.budgets {
		s.budget[u.budget] -= n * u.pods
	}
	s.shift(&s.in, i, taken)
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
	cost = Cost{Priority: s.floor}
	for i, taken := range s.taken {
		if taken {
			items, cost = append(items, i), cost.plus(s.items[i].Cost)
		}
	}
	return items, cost
}

// shift takes an item out of a view, or puts it back.
func (s *search) shift(v *view, i int, out bool) {
	for _, h := range s.items[i].holds {
		if out {
			v.freed[h.device] = v.freed[h.device].plus(h.amount)
		} else {
			v.freed[h.device] = v.freed[h.device].minus(h.amount)
		}
		s.show(v, h.device)
	}
}

// show works out a device of a view.
func (s *search) show(v *view, d int) {
	now, most, freed := s.now[d], &s.most[d], v.freed[d]
	dev := &v.Devices[d]
	switch {
	case freed.slots == 0 && now != nil:
		*dev = *now
	case freed.slots == 0:
		*dev = *most
		dev.Slots = 0
	case freed.slots >= s.slices[d] || now == nil:
		*dev = *most
	default:
		// Where some is reserved the first slices to go may give no room, and the last ones do.
		room := roomOn(most).minus(s.ends[d]).plus(freed).most(amount{}).least(roomOn(now).plus(freed)).least(roomOn(most))
		*dev = *now
		dev.Cut, dev.FreeCore, dev.FreeMem, dev.Slots = most.Cut, room.core, room.mem, room.slots
	}
}

// fits reports whether the demand fits on devices as amounts show them. Which places there are
// on one in MIG mode only the room says.
func (s *search) fits(demand *placement.Demand, n *placement.Node) bool {
	if cut(n.Devices) {
		return demand.MayFit(n)
	}
	return placement.Fits(demand, n)
}

func cut(devices []placement.Device) bool {
	for i := range devices {
		if devices[i].Cut != nil {
			return true
		}
	}
	return false
}

// without is the room when such pods are gone, nil when it takes nothing.
func (s *search) without(gone func(local) bool) *placement.Node {
	s.rooms++
	return s.room(without(s.ledger, func(pod types.UID) bool { l, ok := s.pods[pod]; return ok && gone(l) }))
}

// left is the room that the taken items leave.
func (s *search) left() *placement.Node {
	return s.without(func(l local) bool { return l.alone >= 0 && s.taken[l.alone] || l.whole >= 0 && s.taken[l.whole] })
}

// plan is what the pod gets when the taken items are gone.
func (s *search) plan() (placement.Plan, bool) {
	left := s.left()
	if left == nil {
		return placement.Plan{}, false
	}
	return placement.Fit(s.demand, left)
}

// finish lets all stay that can, the most important first, and says which end.
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
