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
	used, turnover := e.turnover()
	p.turned = turnover / max(used, 1)
	p.setPlaces()
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

// turnover is how many devices are in use, and how many of these by pods that came in place
// of others which are gone. What only fills up has none.
func (e *Engine) turnover() (used, turned float64) {
	used = float64(e.total)
	for _, f := range e.fleets {
		used -= float64(f.free) / steps
	}
	if e.came <= used {
		return used, 0
	}
	return used, used * (1 - used/e.came)
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

// nearly is what a place counts for when hardly anything is in its way: little enough that
// what is scarcer, a model that others insist on, is not taken instead.
const nearly = 0.1

// setPlaces tables how many places for each group some free devices of a node are. Where
// pods come and go, the last place of a node counts for something already while pods are
// in its way, nearly times half for each device that they keep: the fewer they are, the
// sooner all of them will have left, unless others take their place. So those go where
// more would have to leave.
func (p *prices) setPlaces() {
	for j, g := range p.groups {
		p.perCPU[j] = float64(g.gpus) / float64(max(g.cpu, 1))
		none := math.Exp2(-float64(g.gpus))
		for n := range p.places[j] {
			missing := float64(g.gpus - n%g.gpus)
			p.places[j][n] = float64(n/g.gpus) + nearly*p.turned*(math.Exp2(-missing)-none)/(1-none)
		}
	}
}

// kept is what the places for groups are worth of a node of that kind with so many gaps
// that are large enough, and that much CPU.
func (p *prices) kept(k *kind, gaps *[maxGroups]int, cpu Milli) (sum float64) {
	for j := range p.groups {
		g := &p.groups[j]
		if p.slot[j] > 0 && k.Devices >= g.gpus && k.CPU >= g.cpu {
			n := gaps[j]
			if g.cpu > 0 {
				// A little more, as a product may be a little less than the number it is.
				n = max(0, min(n, int(float64(cpu)*p.perCPU[j]+1e-6)))
			}
			sum += p.slot[j] * p.places[j][n]
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

// scarcer reports whether places for groups became worth notably more or less.
func scarcer(before, now *[maxGroups]float64) bool {
	for j := range now {
		if a, b := now[j]+notable, before[j]+notable; a > 1.5*b || b > 1.5*a {
			return true
		}
	}
	return false
}
