// SPDX-License-Identifier: Apache-2.0

package backfill

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// search takes pods out of a node until a demand fits. Where the sums of the devices show
// that it does not, the room is not asked for: that and a plan take most of the time.
type search struct {
	demand *placement.Demand
	ledger *v1alpha1.SliceLedger
	room   Room
	needs  []need
	free   []amount // by device of the status: what the pods that are not out leave
	pods   []*pod   // in the order in which they are taken out
	byUID  map[types.UID]*pod
	plan   placement.Plan // the latest that was found
}

// need is room that the demand cannot do without: that much on each of count devices.
type need struct {
	count v1alpha1.DeviceCount
	slots int
	core  v1alpha1.Percent
	mem   []v1alpha1.MiB // by device of the status, noMem where the pod may not use it
}

const noMem v1alpha1.MiB = math.MaxInt64

// amount is room on a device.
type amount struct {
	core  v1alpha1.Percent
	mem   v1alpha1.MiB
	slots int
}

func (a amount) plus(b amount) amount {
	return amount{a.core + b.core, a.mem + b.mem, a.slots + b.slots}
}

func (a amount) minus(b amount) amount {
	return amount{a.core - b.core, a.mem - b.mem, a.slots - b.slots}
}

// pod is one that has slices on the node.
type pod struct {
	uid   types.UID
	end   time.Time
	known bool
	share int64
	parts []part
	// cost is, where the end is not known, the least share that has to leave one of the pod's
	// devices before the demand can use it.
	cost int64
	out  bool
}

// part is all that a pod has on a device.
type part struct {
	device int
	amount
}

// newSearch has taken nothing out yet; nil where by the sums the demand does not fit even on
// the empty node.
func newSearch(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room Room, ends map[types.UID]time.Time) *search {
	s := &search{demand: demand, ledger: ledger, room: room, free: make([]amount, len(ledger.Status.Devices))}
	for i := range s.free {
		s.free[i] = amount{v1alpha1.WholeGPU, ledger.Status.Devices[i].Mem, v1alpha1.MaxSlicesPerDevice}
	}
	if s.addNeeds(); !s.enough() {
		return nil
	}
	s.addPods(ends)
	s.sort()
	return s
}

// addNeeds lists what each container needs by itself, or all on one device together.
func (s *search) addNeeds() {
	if !s.demand.SameGPU {
		for i := range s.demand.Containers {
			s.needs = append(s.needs, s.need(s.demand.Containers[i:i+1]))
		}
		return
	}
	s.needs = []need{s.need(s.demand.Containers)}
}

// need is what the containers need on a device: all that run in the end, and each other one.
func (s *search) need(containers []placement.Container) need {
	n := need{count: containers[0].Share.GPUs, slots: len(containers), mem: make([]v1alpha1.MiB, len(s.free))}
	var after v1alpha1.Percent
	for i := range containers {
		c := &containers[i]
		if n.core = max(n.core, c.Share.Core); c.Kind != placement.Init {
			after += c.Share.Core
		}
	}
	n.core = max(n.core, after)
	for d := range n.mem {
		n.mem[d] = s.memory(containers, d)
	}
	return n
}

func (s *search) memory(containers []placement.Container, device int) v1alpha1.MiB {
	seen := &s.ledger.Status.Devices[device]
	var most, after v1alpha1.MiB
	for i := range containers {
		if !s.demand.Allows(&containers[i], &placement.Device{UUID: seen.UUID, Model: seen.Model}) {
			return noMem
		}
		own, err := containers[i].Share.Memory(seen.Mem)
		if err != nil {
			return noMem
		}
		if most = max(most, own); containers[i].Kind != placement.Init {
			after += own
		}
	}
	return max(most, after)
}

func (s *search) addPods(ends map[types.UID]time.Time) {
	n := 0
	for i := range s.ledger.Spec.Devices {
		n += len(s.ledger.Spec.Devices[i].Slices)
	}
	// One allocation for all pods, and one for their first parts. There are pointers into them.
	pods, parts := make([]pod, 0, n), make([]part, n)
	s.pods, s.byUID = make([]*pod, 0, n), make(map[types.UID]*pod, n)
	for i := range s.ledger.Spec.Devices {
		granted := &s.ledger.Spec.Devices[i]
		device := slices.IndexFunc(s.ledger.Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == granted.UUID })
		for j := range granted.Slices {
			slice := &granted.Slices[j]
			p := s.byUID[slice.Pod]
			if p == nil {
				k := len(pods)
				pods = append(pods, pod{uid: slice.Pod, parts: parts[k : k : k+1]})
				p = &pods[k]
				p.end, p.known = ends[p.uid]
				s.byUID[p.uid] = p
				s.pods = append(s.pods, p)
			}
			has := amount{slice.Core - slice.ReuseCore, slice.Mem - slice.ReuseMem, 1}
			p.share += max(int64(has.core), int64(has.mem)*int64(v1alpha1.WholeGPU)/int64(max(granted.Mem, 1)))
			if device < 0 {
				continue // it is no longer there
			}
			s.free[device] = s.free[device].minus(has)
			if last := len(p.parts) - 1; last >= 0 && p.parts[last].device == device {
				p.parts[last].amount = p.parts[last].plus(has)
			} else {
				p.parts = append(p.parts, part{device, has})
			}
		}
	}
}

// sort puts the pods in the order in which they are taken out: by their ends, and then, where
// those are not known, device by device, the one first that has least to lose.
func (s *search) sort() {
	slices.SortFunc(s.pods, func(p, q *pod) int {
		if p.known != q.known {
			if p.known {
				return -1
			}
			return 1
		}
		return cmp.Or(p.end.Compare(q.end), cmp.Compare(p.share, q.share), strings.Compare(string(p.uid), string(q.uid)))
	})
	first := slices.IndexFunc(s.pods, func(p *pod) bool { return !p.known })
	if first < 0 {
		return
	}
	unknown := s.pods[first:]
	s.set(first)
	costs := make([]int64, len(s.free))
	for d := range costs {
		costs[d] = s.cost(d, unknown)
	}
	s.set(0)
	for _, p := range unknown {
		p.cost = math.MaxInt64
		for _, has := range p.parts {
			p.cost = min(p.cost, costs[has.device])
		}
	}
	slices.SortStableFunc(unknown, func(p, q *pod) int { return cmp.Compare(p.cost, q.cost) })
}

// cost is the least share, by the sums, that has to leave the device before it is of use to
// the largest container. The pods come in order of their shares.
func (s *search) cost(device int, pods []*pod) (sum int64) {
	n := &s.needs[0]
	if !s.demand.SameGPU {
		n = &s.needs[s.demand.Lead()]
	}
	type leaver struct {
		share int64
		has   amount
	}
	var leaving []leaver
	free := s.free[device]
	for _, p := range pods {
		if n.within(free, device) {
			break
		}
		for _, has := range p.parts {
			if has.device == device {
				free = free.plus(has.amount)
				leaving = append(leaving, leaver{p.share, has.amount})
			}
		}
	}
	if !n.within(free, device) {
		return math.MaxInt64
	}
	for _, l := range slices.Backward(leaving) {
		if left := free.minus(l.has); n.within(left, device) {
			free = left
		} else {
			sum += l.share
		}
	}
	return sum
}

func (n *need) within(free amount, device int) bool {
	return n.slots <= free.slots && n.core <= free.core && n.mem[device] <= free.mem
}

// enough reports whether by the sums each need has its devices. Where it has, the demand still
// may not fit.
func (s *search) enough() bool {
	for i := range s.needs {
		n, found := &s.needs[i], v1alpha1.DeviceCount(0)
		for d := range s.free {
			if n.within(s.free[d], d) {
				found++
			}
		}
		if found < n.count {
			return false
		}
	}
	return true
}

// move takes a pod out, or puts it back.
func (s *search) move(p *pod, out bool) {
	if p.out == out {
		return
	}
	p.out = out
	for _, has := range p.parts {
		if out {
			s.free[has.device] = s.free[has.device].plus(has.amount)
		} else {
			s.free[has.device] = s.free[has.device].minus(has.amount)
		}
	}
}

// set takes out the first n pods and no others.
func (s *search) set(n int) {
	for i, p := range s.pods {
		s.move(p, i < n)
	}
}

// shortest takes out the fewest pods, in their order, without which the demand fits; false
// where it does not fit without any. Those whose room is not needed may be left in.
func (s *search) shortest() bool {
	n := 0
	for ; !s.enough(); n++ {
		if n == len(s.pods) {
			return false
		}
		s.move(s.pods[n], true)
	}
	if s.keep(s.enoughDevices()); s.enough() && s.fits() {
		return true
	}
	if s.set(n); s.fits() {
		return true
	}
	// Something else than the sums is against it, such as places of MIG.
	all := len(s.pods)
	if s.set(all); n == all || !s.fits() {
		return false
	}
	for n+1 < all {
		if s.set((n + all) / 2); s.fits() {
			all = (n + all) / 2
		} else {
			n = (n + all) / 2
		}
	}
	s.set(all)
	return true
}

// enoughDevices are, as bits, devices that by the sums will do for the demand.
func (s *search) enoughDevices() (devices uint64) {
	for i := range s.needs {
		n, left := &s.needs[i], s.needs[i].count
		for d := range s.free {
			if left > 0 && n.within(s.free[d], d) {
				devices |= 1 << d
				left--
			}
		}
	}
	return devices
}

// keep puts back the pods that have nothing on the devices.
func (s *search) keep(devices uint64) {
	for _, p := range s.pods {
		if p.out && !slices.ContainsFunc(p.parts, func(has part) bool { return devices>>has.device&1 == 1 }) {
			s.move(p, false)
		}
	}
}

// drop puts back the pods whose room is not needed: at once those that have nothing on the
// plan's devices, then the latest first.
func (s *search) drop() {
	was := s.out()
	var planned uint64
	for _, g := range s.plan.Grants {
		planned |= 1 << slices.IndexFunc(s.ledger.Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == g.UUID })
	}
	if s.keep(planned); len(s.out()) < len(was) && !(s.enough() && s.fits()) {
		for _, p := range was {
			s.move(p, true)
		}
	}
	for _, p := range slices.Backward(s.out()) {
		if s.move(p, false); !(s.enough() && s.fits()) {
			s.move(p, true)
		}
	}
}

// out are the pods that are out, in their order.
func (s *search) out() (pods []*pod) {
	for _, p := range s.pods {
		if p.out {
			pods = append(pods, p)
		}
	}
	return pods
}

// fits reports whether the demand fits without the pods that are out, and keeps its plan.
func (s *search) fits() bool {
	node := s.room(s.left())
	if node == nil {
		return false
	}
	plan, ok := placement.Fit(s.demand, node)
	if ok {
		s.plan = plan
	}
	return ok
}

// left is the ledger without the pods that are out. It shares with the ledger what they have
// no slices in.
func (s *search) left() *v1alpha1.SliceLedger {
	left := *s.ledger
	left.Spec.Devices = slices.Clone(left.Spec.Devices)
	for i := range left.Spec.Devices {
		d := &left.Spec.Devices[i]
		d.Slices = without(d.Slices, func(slice *v1alpha1.Slice) bool { return s.byUID[slice.Pod].out })
	}
	// The node agent reports those as gone too: else the device would be withheld, as one on
	// which something runs without a grant.
	left.Status.Slices = without(left.Status.Slices, func(slice *v1alpha1.SliceStatus) bool {
		p := s.byUID[slice.Pod]
		return p != nil && p.out
	})
	return &left
}

// without is the list without some items, which are kept where they are.
func without[T any](list []T, gone func(*T) bool) []T {
	var left []T
	for i := range list {
		if gone(&list[i]) {
			if left == nil {
				left = append(make([]T, 0, len(list)-1), list[:i]...)
			}
		} else if left != nil {
			left = append(left, list[i])
		}
	}
	if left == nil {
		return list
	}
	return left
}
