// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/v1alpha1"
)

// Shortfall says what is missing when a demand fits on none of some nodes.
type Shortfall struct {
	// Devices that the nodes have; Allowed are those that the demand may use.
	Devices, Allowed int
	// Models count them by model, where none is allowed.
	Models map[string]int
	// Container that fits nowhere; empty when each container fits alone and
	// only all together do not.
	Container string
	// Class is the container's, nil without one.
	Class *Container
	// SameGPU: the containers have to be on one device together.
	SameGPU bool
	// Topology is the level of which the GPUs have to be, where the containers fit on a node
	// but for that. Near are, by index, the GPUs of Node's set that comes closest, and Enough
	// of them would do for Container. There are none where no node has a set of that level.
	Topology v1alpha1.TopologyLevel
	Near     []int
	// GPUs, Core and Mem are what it needs: that many devices with that much each,
	// in that mode.
	Mode v1alpha1.Mode
	GPUs v1alpha1.DeviceCount
	Core v1alpha1.Percent
	Mem  v1alpha1.MiB
	// Idle is the compute of an idle slice, 0 for any other.
	Idle v1alpha1.Percent
	// Node comes closest. Enough is how many of its devices would do for
	// Container; Best is the closest of those that would not.
	Node   string
	Enough v1alpha1.DeviceCount
	Best   Device
	// Largest is the one with the most memory that Container may use, LargestOn its node.
	Largest   Device
	LargestOn string
	// Annotations are those of the pod that restrict its devices. Excluded is a device with room, on
	// ExcludedOn, that ExcludedBy of them keeps it from. There is none where the pod would not fit
	// without its annotations either.
	Annotations            []string
	Excluded               Device
	ExcludedOn, ExcludedBy string
	// Reserved: a node would do but for what is reserved for others there.
	Reserved bool
}

// Explain finds what keeps the demand from fitting on the nodes. It is the largest
// container that fits nowhere, and the node and device that come closest to it.
func Explain(demand *Demand, nodes []*Node) (s Shortfall) {
	s.exclude(demand, nodes)
	s.Reserved = slices.ContainsFunc(nodes, func(n *Node) bool {
		open := n.unreserved()
		return open != nil && Fits(demand, open)
	})
	for _, n := range nodes {
		s.Devices += len(n.Devices)
		for d := range n.Devices {
			if demand.allows(&n.Devices[d]) {
				s.Allowed++
			}
		}
	}
	for i := range demand.Containers {
		if c := &demand.Containers[i]; c.Class != "" && !slices.ContainsFunc(nodes, func(n *Node) bool {
			return slices.ContainsFunc(n.Devices, func(dev Device) bool { return demand.Allows(c, &dev) })
		}) {
			s.Allowed, s.Class, s.Container = 0, c, c.Name
		}
	}
	if s.Allowed == 0 {
		s.Models = map[string]int{}
		for _, n := range nodes {
			for d := range n.Devices {
				s.Models[n.Devices[d].Model]++
			}
		}
		return s
	}
	if bare := demand.At(v1alpha1.TopologyNode); demand.Topology.Required && slices.ContainsFunc(nodes, func(n *Node) bool { return Fits(bare, n) }) {
		s.apart(demand, nodes)
		return s
	}
	for _, i := range newSearch(demand, &Node{}).order {
		alone := &Demand{Containers: demand.Containers[i : i+1], Policy: demand.Policy, Models: demand.Models, UUIDs: demand.UUIDs}
		if !slices.ContainsFunc(nodes, func(n *Node) bool { return Fits(alone, n) }) {
			s.closest(alone, nodes)
			return s
		}
	}
	if demand.SameGPU {
		s.onOne(demand, nodes)
	} else {
		s.together(demand, nodes)
	}
	return s
}

// exclude fills in the first node that would do but for the pod's own annotations.
func (s *Shortfall) exclude(demand *Demand, nodes []*Node) {
	if demand.Models.Any() {
		s.Annotations = append(s.Annotations, v1alpha1.AnnotationGPUModel)
	}
	if demand.UUIDs.Any() {
		s.Annotations = append(s.Annotations, v1alpha1.AnnotationGPUUUID)
	}
	if len(s.Annotations) == 0 {
		return
	}
	open := *demand
	open.Models, open.UUIDs = v1alpha1.AllowList{}, v1alpha1.AllowList{}
	for _, n := range nodes {
		plan, fits := Fit(&open, n)
		if !fits {
			continue
		}
		for _, g := range plan.Grants {
			dev := &n.Devices[slices.IndexFunc(n.Devices, func(d Device) bool { return d.UUID == g.UUID })]
			if by := demand.excludes(dev); by != "" {
				s.Excluded, s.ExcludedOn, s.ExcludedBy = *dev, n.Name, by
				return
			}
		}
	}
}

// excludes is the annotation of the pod that excludes the device; empty for none.
func (d *Demand) excludes(dev *Device) string {
	switch {
	case !d.Models.Allows(dev.Model):
		return v1alpha1.AnnotationGPUModel
	case !d.UUIDs.Allows(dev.UUID):
		return v1alpha1.AnnotationGPUUUID
	}
	return ""
}

// closest fills in the node and device nearest to the only container of alone.
func (s *Shortfall) closest(alone *Demand, nodes []*Node) {
	c := &alone.Containers[0]
	s.Container, s.Mode, s.GPUs, s.Core = c.Name, c.Mode, c.Share.GPUs, c.Share.Core
	s.Idle = c.Share.Idle
	if c.Class != "" {
		s.Class = c
	}
	// More devices that would do beat a nearer miss.
	bestEnough, bestMiss := v1alpha1.DeviceCount(-1), int64(-1)
	for _, n := range nodes {
		enough, miss := v1alpha1.DeviceCount(0), int64(-1)
		var best, any *Device
		for d := range n.Devices {
			dev := &n.Devices[d]
			if !alone.allows(dev) {
				continue
			}
			any = dev
			if dev.Mem > s.Largest.Mem {
				s.Largest, s.LargestOn = *dev, n.Name
			}
			near, ok := dev.nearness(c.load(dev))
			if c.Share.Idle > 0 {
				lends := dev.lends()
				near, ok = lends.nearness(Amount{Core: c.Share.Idle, Mem: c.Share.MemMiB}, true)
			}
			if _, may := c.on(dev); !may {
				near, ok = 0, false
			}
			if ok {
				enough++
			} else if near > miss {
				miss, best = near, dev
			}
		}
		if enough > bestEnough || enough == bestEnough && (miss > bestMiss || miss == bestMiss && n.Name < s.Node) {
			bestEnough, bestMiss = enough, miss
			s.Node, s.Enough, s.Best = n.Name, enough, Device{}
			if best != nil {
				s.Best, any = *best, best
			}
			if any != nil {
				s.Mem, _ = c.Share.Memory(any.Mem)
			}
		}
	}
}

// lends is the device as idle slices see it.
func (d *Device) lends() Device {
	lends := *d
	lends.FreeCore, lends.FreeMem, lends.ReservedCore, lends.ReservedMem = d.FreeIdle, max(0, min(d.FreeMem+d.Lendable, d.FreeIdleMem)), 0, 0
	return lends
}

// nearness is how much of the amounts a device can serve, the scarcer side first, in
// parts of wholeDevice, were nothing of it reserved; true when it can serve all of it now. Of
// what is not possible there, it serves nothing.
func (d *Device) nearness(need Amount, possible bool) (int64, bool) {
	if !possible {
		return 0, false
	}
	core, mem := int64(wholeDevice), int64(wholeDevice)
	if free := d.FreeCore + d.ReservedCore; need.Core > free {
		core = int64(free) * wholeDevice / int64(need.Core)
	}
	if free := d.FreeMem + d.ReservedMem; need.Mem > free {
		mem = int64(free) * wholeDevice / int64(need.Mem)
	}
	fits := need.Fits(d.Free()) && d.Slots > 0
	if fits && d.Cut != nil {
		_, fits = d.Cut.find(need)
	}
	return 2*min(core, mem) + max(core, mem), fits
}

// apart fills in the set of devices of the required level that has room on most for the largest
// container; of those alike the larger one.
func (s *Shortfall) apart(demand *Demand, nodes []*Node) {
	lead := demand.Lead()
	c := &demand.Containers[lead]
	s.Topology, s.Container, s.Mode, s.GPUs, s.Core = demand.Topology.Level, c.Name, c.Mode, c.Share.GPUs, c.Share.Core
	for _, n := range nodes {
		for _, in := range demand.domains(n, s.Topology) {
			var near []int
			enough, mem := v1alpha1.DeviceCount(0), v1alpha1.MiB(0)
			for d := range n.Devices {
				dev := &n.Devices[d]
				if !in.has(d) || !demand.allows(dev) {
					continue
				}
				near = append(near, int(dev.Index))
				mem, _ = c.Share.Memory(dev.Mem)
				if own, ok := demand.alone(c, dev); ok && dev.Slots > 0 && own.Fits(dev.Free()) {
					enough++
				}
			}
			if cmp.Or(cmp.Compare(enough, s.Enough), cmp.Compare(len(near), len(s.Near)), cmp.Compare(s.Node, n.Name)) > 0 {
				s.Enough, s.Near, s.Node, s.Mem = enough, near, n.Name, mem
			}
		}
	}
}

// onOne fills in what the containers need of one device, and the one nearest to it.
func (s *Shortfall) onOne(demand *Demand, nodes []*Node) {
	s.SameGPU, s.GPUs, s.Mode = true, 1, demand.Containers[0].Mode
	runs, phases := spans(demand.Containers)
	loads, most := make([]Amount, phases), int64(-1)
	for _, n := range nodes {
		for d := range n.Devices {
			dev := &n.Devices[d]
			if !demand.allows(dev) {
				continue
			}
			if dev.Mem > s.Largest.Mem {
				s.Largest, s.LargestOn = *dev, n.Name
			}
			need, possible := demand.peakOn(dev, runs, loads)
			if near, _ := dev.nearness(need, possible); near > most || near == most && n.Name < s.Node {
				most, s.Node, s.Best, s.Core, s.Mem = near, n.Name, *dev, need.Core, need.Mem
			}
		}
	}
}

// peakOn is the most that the containers need of the device at one time, if all are there;
// false where one can't be. loads has the length of the pod's phases.
func (d *Demand) peakOn(dev *Device, runs []span, loads []Amount) (top Amount, possible bool) {
	clear(loads)
	possible = true
	for i := range d.Containers {
		own, ok := d.alone(&d.Containers[i], dev)
		possible = possible && ok
		at := runs[i]
		if dev.Cut != nil {
			at = span{0, len(loads) - 1}
		}
		for p := at.from; p <= at.to; p++ {
			loads[p] = loads[p].Plus(own)
			top = top.Most(loads[p])
		}
	}
	return top, possible
}

// together fills in what all containers need in their largest phase and the node
// with the most room.
func (s *Shortfall) together(demand *Demand, nodes []*Node) {
	var most int64 = -1
	for _, n := range nodes {
		var left int64
		var sum Device
		for d := range n.Devices {
			dev := &n.Devices[d]
			if demand.allows(dev) {
				left += dev.leftover(Amount{})
				sum.FreeCore += dev.FreeCore
				sum.FreeMem += max(0, dev.FreeMem)
				sum.ReservedCore += dev.ReservedCore
				sum.ReservedMem += dev.ReservedMem
				sum.Mem = max(sum.Mem, dev.Mem)
			}
		}
		if left > most || left == most && n.Name < s.Node {
			most, s.Node, s.Best = left, n.Name, sum
		}
	}
	runs, phases := spans(demand.Containers)
	for p := range phases {
		var at Amount
		for i := range demand.Containers {
			c := &demand.Containers[i]
			if runs[i].from <= p && p <= runs[i].to {
				mem, _ := c.Share.Memory(s.Best.Mem)
				at = at.Plus(Amount{Core: c.Share.Core * v1alpha1.Percent(c.Share.GPUs), Mem: mem * v1alpha1.MiB(c.Share.GPUs)})
			}
		}
		s.Core, s.Mem = max(s.Core, at.Core), max(s.Mem, at.Mem)
	}
}

// Cause is what kind of thing is missing.
func (s Shortfall) Cause() cause.Cause {
	of, _ := s.explain()
	return of
}

// String is the explanation for people.
func (s Shortfall) String() string {
	_, text := s.explain()
	return text
}

func (s Shortfall) explain() (cause.Cause, string) {
	of, text := s.lacks()
	if s.ExcludedBy == "" || s.Allowed == 0 {
		return of, text
	}
	return cause.Excluded, fmt.Sprintf("%s; %s GPU %d has room and is excluded by %s", text, s.ExcludedOn, s.Excluded.Index, s.ExcludedBy)
}

func (s Shortfall) lacks() (cause.Cause, string) {
	needs, container := v1alpha1.AmountsText(s.Core, s.Mem), "container "+s.Container
	if s.Class != nil {
		container += " of GPUClass " + s.Class.Class
	}
	short := cause.Insufficient
	switch {
	case s.Mode == v1alpha1.ModeMIG && s.Best.Cut == nil:
		short = cause.Excluded // by vernier.dev/mode
	case s.Reserved:
		short = cause.Reserved
	}
	switch {
	case s.Devices == 0:
		return cause.NoGPU, "no node has a GPU that takes slices"
	case s.Allowed == 0 && s.Class != nil:
		return cause.NoGPUOfClass, fmt.Sprintf("%s: none of the %d GPUs is of the class's models (%s) and allowed by the pod's annotations: %s",
			container, s.Devices, s.Class.Models, v1alpha1.ModelsText(s.Models))
	case s.Allowed == 0:
		return cause.NotAllowed, fmt.Sprintf("none of the %d GPUs is allowed by the pod's %s: %s",
			s.Devices, strings.Join(s.Annotations, " and "), v1alpha1.ModelsText(s.Models))
	case s.Topology != "" && len(s.Near) == 0:
		return cause.Topology, fmt.Sprintf("the pod needs %s, as %s says, and no node's driver reports any that it may use", s.Topology.Text(), v1alpha1.AnnotationTopology)
	case s.Topology != "" && s.Enough >= s.GPUs:
		return cause.Topology, fmt.Sprintf("the containers together need %s, as %s says, and fit on a node otherwise; nearest: %s",
			s.Topology.Text(), v1alpha1.AnnotationTopology, s.nearest())
	case s.Topology != "":
		return cause.Topology, fmt.Sprintf("container %s needs %s on each of %d %s, as %s says; nearest: the largest set with room is %d of %d on %s",
			s.Container, needs, s.GPUs, s.Topology.Text(), v1alpha1.AnnotationTopology, s.Enough, s.GPUs, s.nearest())
	case s.SameGPU && s.Mem > s.Largest.Mem:
		return cause.TooLarge, fmt.Sprintf("the containers need %s on one GPU together, as %s says, and none has so much: the largest is %s GPU %d with %s",
			needs, v1alpha1.AnnotationSameGPU, s.LargestOn, s.Largest.Index, s.Largest.Mem.Text())
	case s.SameGPU:
		return short, fmt.Sprintf("the containers need %s on one GPU together, as %s says, and each fits alone; nearest: %s GPU %d has %s",
			needs, v1alpha1.AnnotationSameGPU, s.Node, s.Best.Index, s.best())
	case s.Container == "":
		return short, fmt.Sprintf("the containers together need %s on one node, and each fits alone; nearest: %s has %s on its GPUs together",
			needs, s.Node, free(&s.Best))
	case s.Mem > s.Largest.Mem:
		return cause.TooLarge, fmt.Sprintf("%s needs %s of a GPU, and none has so much: the largest is %s GPU %d with %s", container, needs, s.LargestOn, s.Largest.Index, s.Largest.Mem.Text())
	}
	if s.Idle > 0 {
		lends := s.Best.lends()
		return short, fmt.Sprintf("%s needs an idle slice of %s on one GPU; nearest: %s GPU %d has %d %% and %s free for idle slices%s",
			container, v1alpha1.AmountsText(s.Idle, s.Mem), s.Node, s.Best.Index, lends.FreeCore, lends.FreeMem.Text(), s.mode())
	}
	if s.GPUs > 1 {
		text := fmt.Sprintf("%s needs %s on each of %d GPUs of one node; nearest: %s has room on %d", container, needs, s.GPUs, s.Node, s.Enough)
		if s.Best.UUID == "" {
			return short, text + ", and no other that the pod may use"
		}
		return short, fmt.Sprintf("%s; the next, GPU %d, has %s", text, s.Best.Index, s.best())
	}
	return short, fmt.Sprintf("%s needs %s on one GPU; nearest: %s GPU %d has %s", container, needs, s.Node, s.Best.Index, s.best())
}

// nearest names the set of devices that comes closest.
func (s Shortfall) nearest() string {
	return fmt.Sprintf("%s GPU %s", s.Node, v1alpha1.DeviceSetOf(s.Near))
}

// best is what the nearest device has, and what else stands against the container.
func (s Shortfall) best() string {
	has := free(&s.Best)
	switch {
	case s.Best.Slots <= 0 && s.Best.MPSOnly:
		has += fmt.Sprintf(", and %d slices, the most that MPS takes", v1alpha1.MaxMPSSlices)
	case s.Best.Slots <= 0:
		has += fmt.Sprintf(", and %d slices, the most that a GPU takes", v1alpha1.MaxSlicesPerDevice)
	}
	return has + s.mode()
}

// free is what a device has free, as others see it who don't know of reservations.
func free(d *Device) string {
	text := fmt.Sprintf("%d %% and %s free", d.FreeCore+d.ReservedCore, max(0, d.FreeMem+d.ReservedMem).Text())
	if d.ReservedCore > 0 || d.ReservedMem > 0 {
		text += fmt.Sprintf(", of which %d %% and %s are reserved for others", d.ReservedCore, d.ReservedMem.Text())
	}
	return text
}

// mode says what of the best device's mode stands against the container.
func (s Shortfall) mode() string {
	switch c := (Container{Mode: s.Mode, Share: v1alpha1.Share{GPUs: s.GPUs}}); {
	case s.Best.Cut == nil && s.Mode == v1alpha1.ModeMPS && !s.Best.MPS:
		return ", and takes no slices in mode mps: it has others, or its node has no MPS"
	case s.Best.MPSOnly && s.Mode != v1alpha1.ModeMPS:
		return ", and is shared by MPS, which takes no slices of other modes"
	case s.Best.Cut == nil && s.Mode == v1alpha1.ModeMIG:
		return ", and is not in MIG mode"
	case s.Best.Cut == nil:
		return ""
	case c.mayCut() && s.GPUs == 1:
		return " in MIG mode, and no place for an instance of that much"
	default:
		return " in MIG mode, where a share is one instance"
	}
}
