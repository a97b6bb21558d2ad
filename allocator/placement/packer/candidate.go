// SPDX-License-Identifier: Apache-2.0

package packer

import "math/bits"

// candidate is a choice of devices on the node in view.
type candidate struct {
	devices uint64
	// own and after are the gaps that change.
	own, after [MaxDevices]uint8
	changes    int
	value      [hostPrices]float64
	count      [maxGroups]int
	room       [maxGroups]float64
}

func (c *candidate) set(v *view) {
	c.devices, c.changes = 0, 0
	c.value, c.count, c.room = v.value, v.count, v.room
}

// take adds device d to the candidate.
func (c *candidate) take(v *view, d int, s *shape, need MiB) {
	p := v.p
	own := v.gaps[d]
	after := gap(Free{v.free[d].Core - s.Core, v.free[d].Mem - need}, v.kind.DeviceMem)
	c.devices |= 1 << d
	c.own[c.changes], c.after[c.changes] = own, after
	c.changes++
	for k := range c.value {
		c.value[k] += p.value[after][k] - p.value[own][k]
	}
	for j := range p.groups {
		size := p.groups[j].size
		if int(own) < size {
			continue
		}
		if int(after) >= size {
			c.room[j] -= float64(own-after) * float64(Whole) / steps
			continue
		}
		c.room[j] -= float64(own) * float64(Whole) / steps
		c.count[j]--
	}
}

// usable is the room that random requests can use of the candidate's node with
// that much CPU free.
func (e *Engine) usable(v *view, c *candidate, cpu Milli) float64 {
	p := v.p
	l := p.levelOf(cpu)
	room := &p.room[v.kind.fleet][l]
	if !v.known[l] {
		sum := 0.0
		for _, g := range v.gaps {
			sum += room[g]
		}
		v.usable[l], v.known[l] = sum, true
	}
	sum := v.usable[l]
	for i := range c.changes {
		sum += room[c.after[i]] - room[c.own[i]]
	}
	likely := &p.likely[v.kind.fleet][l]
	for j := range p.groups {
		if c.count[j] >= p.groups[j].gpus {
			sum += likely[j] * c.room[j]
		}
	}
	return sum
}

// tightest makes the candidate of the devices of the node in view that the shape takes there:
// those that are left with least, so that one that is in use goes before an empty one. The
// prices have no say in that: they compare nodes.
func (e *Engine) tightest(v *view, s *shape) bool {
	c := &e.cand
	c.set(v)
	if s.GPUs == 0 {
		return true
	}
	if !s.allowed[v.kind.fleet] || s.GPUs > len(v.free) {
		return false
	}
	need, in := s.memOn(v.kind.DeviceMem), ^uint64(0)>>(MaxDevices-len(v.free))
	if s.Topology != "" {
		in = v.tightestSet(s, need)
	}
	for range s.GPUs {
		pick := v.pick(s, need, in)
		if pick < 0 {
			return false
		}
		in &^= 1 << pick
		c.take(v, pick, s, need)
	}
	return true
}

// scale is what all of a device's compute counts, and all of its memory.
const scale = 100_000

// pick is the device of the set that has least, and enough; -1 without one.
func (v *view) pick(s *shape, need MiB, in uint64) int {
	pick, least := -1, int64(0)
	for ; in != 0; in &= in - 1 {
		d := bits.TrailingZeros64(in)
		f := &v.free[d]
		if f.Core < s.Core || f.Mem < need {
			continue
		}
		// As placement counts it.
		left := int64(f.Core-s.Core)*scale/int64(Whole) + int64(f.Mem-need)*scale/int64(v.kind.DeviceMem)
		if pick < 0 || left < least {
			pick, least = d, left
		}
	}
	return pick
}

// tightestSet is the set of devices of the shape's level of topology that has enough of them, and
// on these the least; none without one. A set is a smaller node.
func (v *view) tightestSet(s *shape, need MiB) (best uint64) {
	var sets [32]uint64
	var all uint32
	for d := range v.near {
		of := v.near[d].At(s.Topology)
		for all |= of; of != 0; of &= of - 1 {
			sets[bits.TrailingZeros32(of)] |= 1 << d
		}
	}
	least := 0
	for ; all != 0; all &= all - 1 {
		set := sets[bits.TrailingZeros32(all)]
		in, sum, found := set, 0, 0
		for ; found < s.GPUs; found++ {
			pick := v.pick(s, need, in)
			if pick < 0 {
				break
			}
			in &^= 1 << pick
			sum += int(v.gaps[pick])
		}
		if found == s.GPUs && (best == 0 || sum < least) {
			best, least = set, sum
		}
	}
	return best
}
