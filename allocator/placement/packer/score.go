// SPDX-License-Identifier: Apache-2.0

package packer

import "math"

// The score of a placement is how much of the node's worth is kept: the priced
// value of its gaps, which leads; the room that random requests can use, which
// tells apart what is worth the same; places for whole groups while those are
// scarce; and last the fuller node. All are in thousandths of a device.
const (
	// roomWeight is that of usable room.
	roomWeight = 0.03
	// fullerWeight is what a free thousandth of a device of the node, or the CPU
	// that goes with half of one, counts against it.
	fullerWeight = 0.001
	spareWeight  = fullerWeight / 2
	// worthWhenMissed is what each device of a place for a group, or of a model
	// that few can do without, is worth when it is sure to be missed.
	worthWhenMissed = 1000
)

// noFit is the score of a node on which the class has no room.
const noFit = math.MinInt32

// perMilli is the resolution of scores: equal to within this part of a thousandth
// of a device is equal.
const perMilli = 512

// view is a node prepared for scoring.
type view struct {
	*node
	kind *kind
	free []Free
	gaps []uint8
	// value of all gaps at each price.
	value [hostPrices]float64
	// count and room of the gaps large enough for each group, and what the places
	// for groups are worth.
	count [maxGroups]int
	room  [maxGroups]float64
	slots float64
	// level of free CPU to usable room of all gaps, where known.
	usable [levels]float64
	known  [levels]bool
	// worth of the node as it is, and what its being free counts against it.
	worth float64
}

func (e *Engine) gapsOf(id NodeID) []uint8 {
	n := &e.nodes[id]
	return e.gaps[n.first : int(n.first)+e.kinds[n.kind].Devices]
}

func (e *Engine) look(id NodeID) *view {
	v, p := &e.view, e.prices
	v.node = &e.nodes[id]
	v.kind = &e.kinds[v.node.kind]
	v.gaps = e.gapsOf(id)
	v.free = e.free[v.first : int(v.first)+v.kind.Devices]
	v.value, v.count, v.room, v.slots = [hostPrices]float64{}, [maxGroups]int{}, [maxGroups]float64{}, 0
	clear(v.known[:])
	left := 0
	for _, g := range v.gaps {
		left += int(g)
		if g == 0 {
			continue
		}
		for k := range v.value {
			v.value[k] += p.value[g][k]
		}
		for j := range p.groups {
			if int(g) >= p.groups[j].size {
				v.count[j]++
				v.room[j] += float64(g) * float64(Whole) / steps
			}
		}
	}
	for j := range p.groups {
		v.slots += p.slot[j] * float64(v.count[j]/p.groups[j].gpus)
	}
	c := &e.cand
	c.set(v)
	v.worth = p.worth(v.cpu, v.mem, &v.value) + v.slots + roomWeight*e.usable(v, c, v.cpu)
	v.worth += fullerWeight*float64(left)*float64(Whole)/steps + spareWeight*p.spare*float64(v.cpu)
	return v
}

// worth of gaps together with CPU and memory: at the price of these that values
// them least, an upper bound on what they can still bring.
func (p *prices) worth(cpu Milli, mem MiB, value *[hostPrices]float64) float64 {
	least := value[0]
	// It is convex in either price: where it begins to rise it goes on rising.
	at := value[0]
	for k := 1; k <= cpuPrices; k++ {
		next := value[k] + p.cpu[k]*float64(cpu)
		if next > at {
			break
		}
		at = next
	}
	least = min(least, at)
	at = value[0]
	for k := cpuPrices + 1; k < hostPrices; k++ {
		next := value[k] + p.mem[k]*float64(mem)
		if next > at {
			break
		}
		at = next
	}
	return min(least, at)
}

// candidate is a choice of devices on the node in view.
type candidate struct {
	devices uint64
	// own and after are the gaps that change.
	own, after [MaxDevices]uint8
	changes    int
	value      [hostPrices]float64
	count      [maxGroups]int
	room       [maxGroups]float64
	slots      float64
}

func (c *candidate) set(v *view) {
	c.devices, c.changes = 0, 0
	c.value, c.count, c.room, c.slots = v.value, v.count, v.room, v.slots
}

// take adds device d to the candidate.
func (c *candidate) take(e *Engine, v *view, d int, s *shape, need MiB) {
	p := e.prices
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
		before := c.count[j] / p.groups[j].gpus
		c.count[j]--
		c.slots -= p.slot[j] * float64(before-c.count[j]/p.groups[j].gpus)
	}
}

// usable is the room that random requests can use of the candidate's node with
// that much CPU free.
func (e *Engine) usable(v *view, c *candidate, cpu Milli) float64 {
	p := e.prices
	l := min(int(cpu/p.step), levels-1)
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

// candidates yields the choices of devices for the shape on the node in view, one
// at a time in e.cand.
func (e *Engine) candidates(v *view, s *shape, yield func()) {
	c := &e.cand
	if s.GPUs == 0 {
		c.set(v)
		yield()
		return
	}
	if !s.allowed[v.kind.fleet] || s.GPUs > len(v.free) {
		return
	}
	need := s.memOn(v.kind.DeviceMem)
	if s.GPUs > 1 {
		if e.tightest(v, s, need) {
			yield()
		}
		return
	}
	seen := -1
	for d := range v.free {
		f := &v.free[d]
		// Equal devices, which tend to be neighbours, are one choice.
		if f.Core < s.Core || f.Mem < need || seen >= 0 && v.free[seen] == *f {
			continue
		}
		seen = d
		c.set(v)
		c.take(e, v, d, s, need)
		yield()
	}
}

// tightest makes the candidate of the devices that are left with least.
func (e *Engine) tightest(v *view, s *shape, need MiB) bool {
	c := &e.cand
	c.set(v)
	for range s.GPUs {
		pick := -1
		for d := range v.free {
			f := &v.free[d]
			if f.Core >= s.Core && f.Mem >= need && c.devices>>d&1 == 0 && (pick < 0 || v.gaps[d] < v.gaps[pick]) {
				pick = d
			}
		}
		if pick < 0 {
			return false
		}
		c.take(e, v, pick, s, need)
	}
	return true
}

// scoreShape scores the node in view for the shape's classes, into e.best.
func (e *Engine) scoreShape(v *view, s *shape) {
	for _, c := range s.classes {
		e.best[c] = noFit
	}
	e.candidates(v, s, func() {
		for _, c := range s.classes {
			e.best[c] = max(e.best[c], e.rate(v, c))
		}
	})
}

// score is how good it is to place the class on the node in view, and the devices
// that it would take; noFit when there is no room.
func (e *Engine) score(v *view, c int) (best int32, devices uint64) {
	best = noFit
	e.candidates(v, e.shape(c), func() {
		if s := e.rate(v, c); s > best {
			best, devices = s, e.cand.devices
		}
	})
	return best, devices
}

// rate scores the candidate for the class.
func (e *Engine) rate(v *view, class int) int32 {
	c := &e.classes[class]
	if v.cpu < c.CPU || v.mem < c.HostMem {
		return noFit
	}
	p, cpu := e.prices, v.cpu-c.CPU
	kept := p.worth(cpu, v.mem-c.HostMem, &e.cand.value) + e.cand.slots + roomWeight*e.usable(v, &e.cand, cpu)
	return int32(math.Round((kept - v.worth) * perMilli))
}
