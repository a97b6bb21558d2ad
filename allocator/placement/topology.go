// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"math/bits"
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// A domain is a set of a node's devices, a bit for each; the zero value is all of them. The
// devices of a pod are near each other where the search for them is restricted to one.
type domain uint64

func (d domain) has(device int) bool { return d == 0 || d>>device&1 == 1 }

// Levels are the levels of topology to try in turn. None where any choice of devices will do:
// the pod asks for nothing, or for one device, which is near itself.
func (d *Demand) Levels() []v1alpha1.TopologyLevel {
	if d.Topology.Level != v1alpha1.TopologyRDMA && (d.Topology.Level == "" || d.SameGPU || d.Single()) {
		return nil
	}
	return d.Topology.Levels()
}

// At is the demand where it is to have that level and no other.
func (d *Demand) At(level v1alpha1.TopologyLevel) *Demand {
	at := *d
	at.Topology = v1alpha1.TopologyRequest{Level: level, Required: true}
	if level == v1alpha1.TopologyNode {
		at.Topology = v1alpha1.TopologyRequest{}
	}
	return &at
}

// Domains are the sets of devices, as bits, of which the demand has to be within one; nil where
// it need not.
func (d *Demand) Domains(n *Node) []uint64 {
	levels := d.Levels()
	if len(levels) != 1 {
		return nil
	}
	masks := []uint64{}
	for _, in := range d.domains(n, levels[0]) {
		masks = append(masks, uint64(in))
	}
	return masks
}

// domains are the node's sets of the level.
func (d *Demand) domains(n *Node, level v1alpha1.TopologyLevel) []domain {
	if level == v1alpha1.TopologyNode {
		return []domain{0}
	}
	var sets [32]domain
	var alone domain
	for i := range n.Devices {
		of := n.Devices[i].Near.At(level)
		if of == 0 {
			alone |= 1 << i
		}
		for ; of != 0; of &= of - 1 {
			sets[bits.TrailingZeros32(of)] |= 1 << i
		}
	}
	found := make([]domain, 0, 8)
	for _, in := range sets {
		if in != 0 {
			found = append(found, in)
		}
	}
	// One device is near itself, of whatever sets it is.
	if level != v1alpha1.TopologyRDMA && d.span() == 1 {
		for ; alone != 0; alone &= alone - 1 {
			found = append(found, alone&-alone)
		}
	}
	return found
}

// LeastDevices is on how many devices the pod is at the least.
func (d *Demand) LeastDevices() int {
	return max(int(d.span()), int((d.Least()+int64(v1alpha1.WholeGPU)-1)/int64(v1alpha1.WholeGPU)))
}

// span is on how many devices a container of the pod is at the most.
func (d *Demand) span() (most v1alpha1.DeviceCount) {
	for i := range d.Containers {
		most = max(most, d.Containers[i].Share.GPUs)
	}
	return most
}

// within tries to serve the demand on the node, in one domain of the first level where that
// is possible. Of several it is the one with most instances of MIG, then the one that leaves
// most sets of devices wholly free, then the one that the policy prefers.
func within(demand *Demand, node *Node, serve func(*search) bool) (Plan, bool) {
	steps := 0 // of the level: its domains share what one search may take
	try := func(in domain) (Plan, bool) {
		s := newSearch(demand, node)
		s.domain, s.steps = in, steps
		served := serve(s)
		if steps = s.steps; !served {
			return Plan{}, false
		}
		plan := s.plan()
		s.weigh(&plan)
		return plan, true
	}
	levels := demand.Levels()
	if levels == nil {
		return try(0)
	}
	for _, level := range levels {
		var best Plan
		found, most := false, 0
		steps = 0
		for _, in := range demand.domains(node, level) {
			if !demand.mayFit(node, in) {
				continue
			}
			plan, ok := try(in)
			if !ok {
				continue
			}
			left := node.wholeSets(&plan)
			if !found || cmp.Or(cmp.Compare(best.cut, plan.cut), cmp.Compare(most, left), demand.Compare(&plan, &best)) < 0 {
				best, most, found = plan, left, true
			}
		}
		if found {
			return best, true
		}
	}
	return Plan{}, false
}

// level is the first of the levels that the chosen devices have, by its number.
func (s *search) level() int {
	levels := s.demand.Levels()
	var used []v1alpha1.Near
	if levels != nil {
		for d, n := range s.slices {
			if n > 0 {
				used = append(used, s.node.Devices[d].Near)
			}
		}
	}
	for i, level := range levels {
		if level.Within(used...) {
			return i
		}
	}
	return len(levels)
}

// whole reports whether nothing of the device is granted.
func (d *Device) whole() bool { return d.FreeCore >= v1alpha1.WholeGPU && d.FreeMem >= d.Mem }

// broken are the sets of which a device is in use, and all are all sets.
func (n *Node) broken(used func(device int) bool) (broken, all v1alpha1.Near) {
	for i := range n.Devices {
		dev := &n.Devices[i]
		if dev.Near == (v1alpha1.Near{}) {
			continue
		}
		all = all.Or(dev.Near)
		if !dev.whole() || used(i) {
			broken = broken.Or(dev.Near)
		}
	}
	return broken, all
}

// wholeSets is how many sets the plan leaves of which no device is in use.
func (n *Node) wholeSets(plan *Plan) int {
	broken, all := n.broken(func(d int) bool {
		return slices.ContainsFunc(plan.Grants, func(g Grant) bool { return g.UUID == n.Devices[d].UUID })
	})
	return breaks(all, broken)
}

// breaks is of how many sets beside the broken ones a device is. That RDMA devices are near
// says nothing of other devices.
func breaks(near, broken v1alpha1.Near) int {
	return bits.OnesCount32(near.NUMA&^broken.NUMA) + bits.OnesCount32(near.PCIe&^broken.PCIe) + bits.OnesCount32(near.NVLink&^broken.NVLink)
}

// gather orders devices that are as good as each other, so that each in its turn breaks the
// fewest sets of which no device is in use: as a rule it is near those before it.
func (n *Node) gather(devices []int, broken v1alpha1.Near) {
	for i := range devices {
		best := i
		for j := i + 1; j < len(devices); j++ {
			if breaks(n.Devices[devices[j]].Near, broken) < breaks(n.Devices[devices[best]].Near, broken) {
				best = j
			}
		}
		d := devices[best]
		copy(devices[i+1:best+1], devices[i:best])
		devices[i], broken = d, broken.Or(n.Devices[d].Near)
	}
}
