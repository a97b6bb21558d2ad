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

// scoreShape scores the node in view for the shape's classes, into e.best.
func (e *Engine) scoreShape(v *view, s *shape) {
	fits := e.tightest(v, s)
	for _, c := range s.classes {
		if e.best[c] = noFit; fits {
			e.best[c] = e.rate(v, c)
		}
	}
}

// score is how good it is to place the class on the node in view, and the devices
// that it would take; noFit when there is no room.
func (e *Engine) score(v *view, c int) (int32, uint64) {
	if !e.tightest(v, e.shape(c)) {
		return noFit, 0
	}
	return e.rate(v, c), e.cand.devices
}

// rate scores the candidate for the class.
func (e *Engine) rate(v *view, class int) int32 {
	c := &e.classes[class]
	if v.cpu < c.CPU || v.mem < c.HostMem {
		return noFit
	}
	p, cpu := v.p, v.cpu-c.CPU
	kept := p.worth(cpu, v.mem-c.HostMem, &e.cand.value) + p.kept(v.kind, &e.cand.count, cpu) + roomWeight*e.usable(v, &e.cand, cpu)
	return int32(math.RoundToEven((kept - v.worth) * perMilli))
}
