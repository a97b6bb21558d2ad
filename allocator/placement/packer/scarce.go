// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math"
	"slices"
)

// setScarce weighs what only some nodes can serve, where there are have places for
// the groups.
func (p *prices) setScarce(e *Engine, have *[maxGroups]float64) {
	parts := e.mix.parts()
	p.unsure = e.mix.unseen(priorAsk)
	p.demand = 0
	for i := range e.classes {
		p.demand += parts[i] * e.shape(i).part()
	}
	p.setSlots(e, parts, have)
	p.setInsist(e, parts)
}

// negligible is a chance that is not worth counting places for.
const negligible = 1e-3

// setSlots weighs the requests for several devices, until as much has arrived as
// is free now, against the places that are left for them.
func (p *prices) setSlots(e *Engine, parts []float64, have *[maxGroups]float64) {
	var asked, part [maxGroups]float64
	free := 0
	for _, f := range e.fleets {
		free += f.free
	}
	turnover := e.turnover()
	for i := range e.classes {
		s := e.shape(i)
		for j, g := range p.groups {
			// A larger request takes the place of a smaller one too.
			if s.GPUs >= g.gpus && s.size >= g.size && e.classes[i].CPU >= g.cpu {
				asked[j] += parts[i] / p.demand * float64(free) / steps
				part[j] += parts[i] / p.demand
			}
		}
	}
	for j, g := range p.groups {
		missed := math.Erfc((have[j]-asked[j])/math.Sqrt(2*(asked[j]+turnover*part[j]+1))) / 2
		p.slot[j] = 0
		if missed > negligible {
			p.slot[j] = worthWhenMissed * missed * float64(g.gpus*g.size) / steps
		}
	}
}

// turnover is how many devices are in the hands of pods that came in place of others
// which are gone. What only fills up has none.
func (e *Engine) turnover() float64 {
	used := float64(e.total)
	for _, f := range e.fleets {
		used -= float64(f.free) / steps
	}
	if e.came <= used {
		return 0
	}
	return used * (1 - used/e.came)
}

// count is how many of the gaps are large enough.
func (g *group) count(gaps []uint8) (n int) {
	for _, have := range gaps {
		if int(have) >= g.size {
			n++
		}
	}
	return n
}

// places is how many such requests that many gaps and that much CPU can take.
func (g *group) places(gaps int, cpu Milli) int {
	// Few of the nodes that are looked at have room for any: divide for those.
	if gaps < g.gpus || cpu < g.cpu {
		return 0
	}
	n := gaps / g.gpus
	if g.cpu > 0 && cpu < g.cpu*Milli(n) {
		n = int(cpu / g.cpu)
	}
	return n
}

// places is what a node's places for groups are worth.
func (p *prices) places(count *[maxGroups]int, cpu Milli) (sum float64) {
	for j := range p.groups {
		if p.slot[j] > 0 {
			sum += p.slot[j] * float64(p.groups[j].places(count[j], cpu))
		}
	}
	return sum
}

// setInsist collects the demands that only some models can serve.
func (p *prices) setInsist(e *Engine, parts []float64) {
	p.insist = nil
	for i := range e.classes {
		s := e.shape(i)
		in := insist{mean: parts[i] * s.part(), square: parts[i] * s.part() * s.part()}
		all := true
		for m, f := range e.fleets {
			if s.allowed[m] && m < 64 {
				in.models |= 1 << m
			} else if f.have > 0 {
				all = false
			}
		}
		if all || in.models == 0 || in.mean == 0 {
			continue
		}
		at := slices.IndexFunc(p.insist, func(other insist) bool { return other.models == in.models })
		if at < 0 {
			p.insist = append(p.insist, in)
			continue
		}
		p.insist[at].mean += in.mean
		p.insist[at].square += in.square
	}
}

// scarcer tells whether places for groups became worth notably more or less.
func scarcer(before, now *[maxGroups]float64) bool {
	for j := range now {
		if a, b := now[j]+notable, before[j]+notable; a > 1.5*b || b > 1.5*a {
			return true
		}
	}
	return false
}
