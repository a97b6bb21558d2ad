// SPDX-License-Identifier: Apache-2.0

package packer

import "math"

// The score of a placement is how much of the node's worth is kept: the priced
// value of its gaps, which leads; the room that random requests could use, which
// tells apart what is worth the same; the models that few have, kept for those
// who need them; and last the fuller node. All are in thousandths of a device.
const (
	roomWeight     = 0.03
	scarcityWeight = 30
	fullerWeight   = 1.0 / 8000
	cpuWeight      = 1.0 / 128000
)

// noFit is the score of a node on which the class has no room.
const noFit = math.MinInt32

// perMilli is the resolution of scores: equal to within this part of a thousandth
// of a device is equal.
const perMilli = 512

// view is a node prepared for scoring many classes.
type view struct {
	*node
	kind *kind
	free []Free
	gaps [MaxDevices]uint8
	// value of all gaps at each CPU price.
	value [cpuPrices]float64
	// count and room of the gaps large enough for each group.
	count [maxGroups]int
	room  [maxGroups]float64
	left  int
	worth float64
	// bases[l] is the usable room of all gaps at level l where known[l].
	bases [levels]float64
	known [levels]bool
}

func (e *Engine) look(id NodeID) *view {
	v, p := &e.view, e.prices
	v.node = &e.nodes[id]
	v.kind = &e.kinds[v.node.kind]
	v.free = e.devices(id)
	v.value, v.count, v.room, v.known, v.left = [cpuPrices]float64{}, [maxGroups]int{}, [maxGroups]float64{}, [levels]bool{}, 0
	for d := range v.free {
		g := gap(v.free[d], v.kind.DeviceMem)
		v.gaps[d] = uint8(g)
		v.left += g
		for k := range v.value {
			v.value[k] += p.value[g][k]
		}
		for j, shape := range p.groups {
			if g >= shape.size {
				v.count[j]++
				v.room[j] += float64(g)
			}
		}
	}
	v.worth = e.lagrange(v.cpu, &v.value) + roomWeight*e.usable(v, v.cpu, -1, 0)
	return v
}

// lagrange values gaps and CPU together: at the CPU price that values them least.
func (e *Engine) lagrange(cpu Milli, value *[cpuPrices]float64) float64 {
	least := value[0]
	for k := 1; k < cpuPrices; k++ {
		least = min(least, value[k]+e.prices.cpu[k]*float64(cpu))
	}
	return least
}

// usable is the room that random requests can use with cpu free, when device d
// has gap g instead of its own; d below 0 changes nothing.
func (e *Engine) usable(v *view, cpu Milli, d, g int) float64 {
	p := e.prices
	l := min(int(cpu/p.step), levels-1)
	room := &p.room[v.kind.model][l]
	if !v.known[l] {
		sum := 0.0
		for i := range v.free {
			sum += room[v.gaps[i]]
		}
		v.bases[l], v.known[l] = sum, true
	}
	sum := v.bases[l]
	own := 0
	if d >= 0 {
		own = int(v.gaps[d])
		sum += room[g] - room[own]
	}
	for j, shape := range p.groups {
		count, r := v.count[j], v.room[j]
		if d >= 0 && own >= shape.size {
			r -= float64(own)
			if g >= shape.size {
				r += float64(g)
			} else {
				count--
			}
		}
		if count >= shape.gpus {
			sum += p.likely[v.kind.model][l][j] * r * float64(Whole) / steps
		}
	}
	return sum
}

// score is how good it is to place the class on the node in view, and the devices
// it would take; noFit when there is no room.
func (e *Engine) score(v *view, c *class) (best int32, devices uint64) {
	if v.cpu < c.CPU || v.mem < c.HostMem || c.GPUs > 0 && !c.allowed[v.kind.model] || c.GPUs > len(v.free) {
		return noFit, 0
	}
	switch c.GPUs {
	case 0:
		return e.sumUp(v, c, &v.value, e.usable(v, v.cpu-c.CPU, -1, 0)), 0
	case 1:
		return e.scoreOne(v, c)
	default:
		return e.scoreMany(v, c)
	}
}

func (e *Engine) scoreOne(v *view, c *class) (best int32, devices uint64) {
	best = noFit
	need := c.memOn(v.kind.DeviceMem)
	seen := -1
	for d := range v.free {
		f := v.free[d]
		if f.Core < c.Core || f.Mem < need || seen >= 0 && v.free[seen] == f {
			continue
		}
		seen = d
		g := gap(Free{f.Core - c.Core, f.Mem - need}, v.kind.DeviceMem)
		value := v.value
		for k := range value {
			value[k] += e.prices.value[g][k] - e.prices.value[v.gaps[d]][k]
		}
		if s := e.sumUp(v, c, &value, e.usable(v, v.cpu-c.CPU, d, g)); s > best {
			best, devices = s, 1<<d
		}
	}
	return best, devices
}

// scoreMany takes the devices that fit tightest.
func (e *Engine) scoreMany(v *view, c *class) (best int32, devices uint64) {
	need := c.memOn(v.kind.DeviceMem)
	for range c.GPUs {
		pick := -1
		for d := range v.free {
			if f := v.free[d]; f.Core >= c.Core && f.Mem >= need && devices>>d&1 == 0 && (pick < 0 || v.gaps[d] < v.gaps[pick]) {
				pick = d
			}
		}
		if pick < 0 {
			return noFit, 0
		}
		devices |= 1 << pick
	}
	after := &e.after
	after.node, after.kind, after.free = v.node, v.kind, v.free
	after.value, after.count, after.room, after.known = [cpuPrices]float64{}, [maxGroups]int{}, [maxGroups]float64{}, [levels]bool{}
	for d := range v.free {
		g := int(v.gaps[d])
		if devices>>d&1 == 1 {
			g = gap(Free{v.free[d].Core - c.Core, v.free[d].Mem - need}, v.kind.DeviceMem)
		}
		after.gaps[d] = uint8(g)
		for k := range after.value {
			after.value[k] += e.prices.value[g][k]
		}
		for j, shape := range e.prices.groups {
			if g >= shape.size {
				after.count[j]++
				after.room[j] += float64(g)
			}
		}
	}
	return e.sumUp(v, c, &after.value, e.usable(after, v.cpu-c.CPU, -1, 0)), devices
}

// sumUp puts the parts of the score together.
func (e *Engine) sumUp(v *view, c *class, value *[cpuPrices]float64, room float64) int32 {
	cpu := v.cpu - c.CPU
	s := e.lagrange(cpu, value) + roomWeight*room - v.worth
	s -= fullerWeight*float64(v.left)*float64(Whole)/steps + cpuWeight*float64(cpu)
	s -= scarcityWeight * e.prices.scarcity[v.kind.model] * float64(c.GPUs)
	return int32(math.Round(s * perMilli))
}
