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
	// domain is where on the node.
	domain domain
	// near: some devices of the node are near each other, by what its driver says.
	near   bool
	runs   []span
	phases int
	// order in which containers are served: app containers and sidecars first, so
	// that init containers can reuse their room; the larger first.
	order []int
	// loads[d][p] is this pod's load on device d in phase p.
	loads [][]Amount
	// slices[d] is the number of this pod's slices on device d.
	slices []int
	// chosen[i] are the devices of container i, places[i] where on its device it is
	// if that is in MIG mode.
	chosen [][]int
	places []v1alpha1.MIGPlace
	// cuts[d] is device d with the pod's instances, the latest last; empty without.
	cuts  [][]*Cut
	steps int
}

// Fit plans the demand on the node; false when it does not fit. The allocator and kubectl vernier
// fit both take the devices of a node from it, so they agree whatever the ranking has learnt.
func Fit(demand *Demand, node *Node) (Plan, bool) {
	// Of most nodes that are asked about a look is enough.
	if !demand.MayFit(node) {
		return Plan{}, false
	}
	plan, ok := within(demand, node, func(s *search) bool { return s.place(0) })
	if ok && len(demand.Containers) > 1 {
		others, whole := together(demand, node, &plan), node.wholeSets(&plan)
		if at := slices.IndexFunc(others, func(o Plan) bool { return demand.Compare(&o, &plan) <= 0 && node.wholeSets(&o) >= whole }); at >= 0 {
			return others[at], true
		}
	}
	return plan, ok
}

// Fits reports whether the demand fits on the node.
func Fits(demand *Demand, node *Node) bool {
	if !demand.MayFit(node) {
		return false
	}
	// Of an amount on one device nothing else is to be seen; an instance of MIG needs a place.
	if demand.Single() && !node.cut() {
		return true
	}
	_, ok := Fit(demand, node)
	return ok
}

// MayFit reports whether each container alone finds as many devices as it needs. Where
// one does not, the pod does not fit; where all do, it still may not.
func (d *Demand) MayFit(n *Node) bool {
	if d.Topology.Required {
		if levels := d.Levels(); levels != nil {
			return slices.ContainsFunc(d.domains(n, levels[0]), func(in domain) bool { return d.mayFit(n, in) })
		}
	}
	return d.mayFit(n, 0)
}

func (d *Demand) mayFit(n *Node, in domain) bool {
	for i := range d.Containers {
		found := v1alpha1.DeviceCount(0)
		for j := range n.Devices {
			dev := &n.Devices[j]
			if need, ok := d.Need(i, dev); ok && in.has(j) && need.Fits(d.freeOf(dev)) {
				found++
			}
		}
		if found < d.Containers[i].Share.GPUs {
			return false
		}
		if d.SameGPU {
			break // it was the need of all
		}
	}
	return true
}

// alone is the container's load on the device; false where the pod may not use the device or
// the container can never have a slice of it.
func (d *Demand) alone(c *Container, dev *Device) (Amount, bool) {
	own, ok := c.load(dev)
	_, may := c.on(dev)
	return own, ok && may && d.Allows(c, dev)
}

// Need is what the container at i cannot do without on the device, or all together with SameGPU;
// false where it can never be there. With so much free it still may not fit.
func (d *Demand) Need(i int, dev *Device) (need Amount, ok bool) {
	if !d.SameGPU {
		need, ok = d.alone(&d.Containers[i], dev)
		need.Slots = 1
		return need, ok
	}
	// Those that run together in the end; inits run before them, and reuse their room.
	var most Amount
	for i := range d.Containers {
		own, ok := d.alone(&d.Containers[i], dev)
		if !ok {
			return need, false
		}
		if most = most.Most(own); d.Containers[i].Kind != Init {
			need = need.Plus(own)
		}
	}
	need = need.Most(most)
	need.Slots = len(d.Containers)
	return need, true
}

func (s *search) plan() Plan {
	plan := Plan{Node: s.node.Name, Grants: s.book()}
	for _, cuts := range s.cuts {
		plan.cut += len(cuts)
	}
	return plan
}

func newSearch(demand *Demand, node *Node) *search {
	s := &search{
		demand: demand,
		node:   node,
		order:  make([]int, len(demand.Containers)),
		loads:  make([][]Amount, len(node.Devices)),
		slices: make([]int, len(node.Devices)),
		chosen: make([][]int, len(demand.Containers)),
		places: make([]v1alpha1.MIGPlace, len(demand.Containers)),
		cuts:   make([][]*Cut, len(node.Devices)),
	}
	s.runs, s.phases = spans(demand.Containers)
	s.near = slices.ContainsFunc(node.Devices, func(d Device) bool { return d.Near != v1alpha1.Near{} })
	all := make([]Amount, len(node.Devices)*s.phases)
	for d := range s.loads {
		s.loads[d], all = all[:s.phases], all[s.phases:]
	}
	demand.sort(s.order)
	if len(s.order) > 1 && node.cut() {
		s.largestInstancesFirst()
	}
	return s
}

// largestInstancesFirst moves those to the front that take most of a device in MIG
// mode: there, unlike in amounts, a small one can be in the way of a large one
// wherever it is.
func (s *search) largestInstancesFirst() {
	sizes := make([]int32, len(s.demand.Containers))
	for d := range s.node.Devices {
		dev := &s.node.Devices[d]
		if dev.Cut == nil {
			continue
		}
		for i := range sizes {
			own, _ := s.demand.Containers[i].load(dev)
			sizes[i] = max(sizes[i], dev.Cut.size(own))
		}
	}
	slices.SortStableFunc(s.order, func(a, b int) int { return cmp.Compare(sizes[b], sizes[a]) })
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
	candidates := s.preferred(i)
	if s.demand.SameGPU && n > 0 {
		// Devices that containers have already are kept, even where there are several.
		candidates = slices.DeleteFunc(candidates, func(d int) bool { return s.slices[d] == 0 })
	}
	return s.pick(n, candidates, int(s.demand.Containers[i].Share.GPUs))
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
		odd    bool
		size   int32
		more   Amount
		opens  int64
		left   int64
	}
	choices := make([]choice, 0, len(s.node.Devices))
	for d := range s.node.Devices {
		dev := &s.node.Devices[d]
		if !s.domain.has(d) || !s.demand.Allows(&s.demand.Containers[i], dev) || s.slices[d] >= dev.Slots {
			continue
		}
		after, ok := s.peakWith(i, d)
		if !ok || !after.Fits(s.demand.freeOf(dev)) {
			continue
		}
		place, ok := s.lie(i, d)
		if !ok {
			continue
		}
		before := s.peak(d)
		choices = append(choices, choice{d, false, place.Size, after.Minus(before), s.opens(d), dev.leftover(after)})
	}
	reuses := s.demand.Containers[i].Kind == Init
	order := func(a, b choice) int {
		// An instance of MIG is the stronger one, where there is a choice, and the
		// smallest takes the least.
		if c := cmp.Or(cmp.Compare(b2i(a.odd), b2i(b.odd)), cmp.Compare(b2i(a.size == 0), b2i(b.size == 0)), cmp.Compare(a.size, b.size)); c != 0 {
			return c
		}
		if reuses {
			if c := cmp.Or(cmp.Compare(a.more.Core, b.more.Core), cmp.Compare(a.more.Mem, b.more.Mem)); c != 0 {
				return c
			}
		}
		return cmp.Or(s.demand.prefer(a.opens, b.opens), s.demand.prefer(a.left, b.left))
	}
	slices.SortStableFunc(choices, order)
	// Several devices are alike, where there are enough that are.
	unlike := func(a, b choice) bool {
		x, y := &s.node.Devices[a.device], &s.node.Devices[b.device]
		return x.Model != y.Model || x.Mem != y.Mem
	}
	for gpus, k := int(s.demand.Containers[i].Share.GPUs), 0; gpus > 1 && k < len(choices); k++ {
		first, alike := choices[k], 0
		for _, c := range choices {
			alike += 1 - b2i(unlike(first, c))
		}
		if alike >= gpus {
			for j := range choices {
				choices[j].odd = unlike(first, choices[j])
			}
			slices.SortStableFunc(choices, order)
			break
		}
	}
	devices := make([]int, len(choices))
	for k, c := range choices {
		devices[k] = c.device
	}
	if !s.near {
		return devices
	}
	broken, _ := s.node.broken(func(d int) bool { return s.slices[d] > 0 })
	for from := 0; from < len(choices); {
		to := from + 1
		for to < len(choices) && order(choices[from], choices[to]) == 0 {
			to++
		}
		s.node.gather(devices[from:to], broken)
		from = to
	}
	return devices
}

// opens is 1 for a device of which nothing is granted, and nothing to the pod.
func (s *search) opens(d int) int64 {
	return int64(b2i(s.slices[d] == 0 && s.node.Devices[d].whole()))
}

// prefer orders two leftovers: pack takes the least, spread the most.
func (d *Demand) prefer(a, b int64) int {
	if d.Policy == v1alpha1.PolicySpread {
		a, b = b, a
	}
	return cmp.Compare(a, b)
}

// Allows reports whether the container may use the device, as far as its model and UUID go.
func (d *Demand) Allows(c *Container, dev *Device) bool {
	return d.Models.Allows(dev.Model) && d.UUIDs.Allows(dev.UUID) && c.Models.Allows(dev.Model)
}

// MayUse reports whether any container may use devices of the model.
func (d *Demand) MayUse(model string) bool {
	return d.Models.Allows(model) && slices.ContainsFunc(d.Containers, func(c Container) bool { return c.Models.Allows(model) })
}

// allows reports whether any container may.
func (d *Demand) allows(dev *Device) bool {
	return slices.ContainsFunc(d.Containers, func(c Container) bool { return d.Allows(&c, dev) })
}

// classes reports whether a container asks for units of a class.
func (d *Demand) classes() bool {
	return slices.ContainsFunc(d.Containers, func(c Container) bool { return c.Class != "" })
}

func (s *search) peak(d int) Amount {
	var top Amount
	for _, l := range s.loads[d] {
		top = top.Most(l)
	}
	return top
}

// peakWith is the peak on device d if container i were on it too.
func (s *search) peakWith(i, d int) (Amount, bool) {
	own, ok := s.demand.Containers[i].load(&s.node.Devices[d])
	top := s.peak(d)
	runs := s.span(i, d)
	for p := runs.from; p <= runs.to; p++ {
		top = top.Most(s.loads[d][p].Plus(own))
	}
	return top, ok
}

// span is when container i has its part of device d.
func (s *search) span(i, d int) span {
	if s.node.Devices[d].Cut != nil {
		return span{0, s.phases - 1}
	}
	return s.runs[i]
}

// cut is device d with what the pod has there, nil if it isn't in MIG mode.
func (s *search) cut(d int) *Cut {
	if n := len(s.cuts[d]); n > 0 {
		return s.cuts[d][n-1]
	}
	return s.node.Devices[d].Cut
}

// lie is where container i goes on device d; no place at all if that isn't in MIG
// mode. False when it can't be there in its mode.
func (s *search) lie(i, d int) (v1alpha1.MIGPlace, bool) {
	c, dev := &s.demand.Containers[i], &s.node.Devices[d]
	if _, ok := c.on(dev); !ok || dev.Cut == nil {
		return v1alpha1.MIGPlace{}, ok
	}
	if fixed := s.places[i]; fixed.Size > 0 {
		return fixed, s.cut(d).free(fixed)
	}
	own, _ := c.load(dev)
	return s.cut(d).find(own)
}

func (s *search) add(i, d int) {
	own, _ := s.demand.Containers[i].load(&s.node.Devices[d])
	if cut := s.cut(d); cut != nil {
		s.places[i], _ = s.lie(i, d)
		s.cuts[d] = append(s.cuts[d], cut.with(s.places[i]))
	}
	runs := s.span(i, d)
	for p := runs.from; p <= runs.to; p++ {
		s.loads[d][p] = s.loads[d][p].Plus(own)
	}
	s.slices[d]++
	s.chosen[i] = append(s.chosen[i], d)
}

func (s *search) drop(i, d int) {
	own, _ := s.demand.Containers[i].load(&s.node.Devices[d])
	if n := len(s.cuts[d]); n > 0 {
		s.cuts[d], s.places[i] = s.cuts[d][:n-1], v1alpha1.MIGPlace{}
	}
	runs := s.span(i, d)
	for p := runs.from; p <= runs.to; p++ {
		s.loads[d][p] = s.loads[d][p].Minus(own)
	}
	s.slices[d]--
	s.chosen[i] = s.chosen[i][:len(s.chosen[i])-1]
}

// alike reports whether two allowed devices are interchangeable for what is still
// to be placed: where one led nowhere the other will too.
func (s *search) alike(a, b int) bool {
	x, y := &s.node.Devices[a], &s.node.Devices[b]
	return x.Mem == y.Mem && (x.Model == y.Model || !s.demand.classes()) && x.MPS == y.MPS && x.MPSOnly == y.MPSOnly && x.FreeCore == y.FreeCore && x.FreeMem == y.FreeMem && x.OvercommitCore == y.OvercommitCore && x.Expected == y.Expected && x.Lendable == y.Lendable &&
		x.Slots-s.slices[a] == y.Slots-s.slices[b] && slices.Equal(s.loads[a], s.loads[b]) && s.cut(a).Equal(s.cut(b))
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
