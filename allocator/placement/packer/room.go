// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"cmp"
	"slices"
)

// setGroups keeps the requests for several devices that ask for most.
func (p *prices) setGroups(e *Engine, parts []float64) {
	weight := map[group]float64{}
	for i := range e.classes {
		if s := e.shape(i); s.GPUs > 1 && parts[i] > 0 {
			weight[group{s.GPUs, s.size, e.classes[i].CPU}] += parts[i] * s.part()
		}
	}
	for g := range weight {
		p.groups = append(p.groups, g)
	}
	slices.SortFunc(p.groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(weight[b], weight[a]), cmp.Compare(a.gpus, b.gpus), cmp.Compare(a.size, b.size), cmp.Compare(a.cpu, b.cpu))
	})
	p.groups = p.groups[:min(len(p.groups), maxGroups)]
}

// setLevels makes the amounts of CPU that requests ask for the steps between
// levels, the next larger one for some where there are too many.
func (p *prices) setLevels(e *Engine, parts []float64) {
	common := Milli(0)
	for i := range e.classes {
		if parts[i] > 0 {
			common = divisor(e.classes[i].CPU, common)
		}
	}
	common = max(1, common)
	p.step = common * max(1, (e.mostCPU/common+cpuSteps-2)/(cpuSteps-1))
	var asked [cpuSteps]bool
	amounts := 0
	for i := range e.classes {
		if at := (e.classes[i].CPU + p.step - 1) / p.step; parts[i] > 0 && e.classes[i].GPUs > 0 && at < cpuSteps && !asked[at] {
			asked[at] = true
			amounts++
		}
	}
	// The largest is a level of its own, whatever the others share.
	every := (amounts + levels - 2) / (levels - 1)
	seen, level := 0, uint8(0)
	for at := range p.level {
		if asked[at] {
			if seen++; (amounts-seen)%max(every, 1) == 0 {
				level++
			}
		}
		p.level[at] = level
	}
}

// divisor is the greatest that a and b have in common.
func divisor(a, b Milli) Milli {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// levelOf is the level of that much free CPU, which may be less than nothing.
func (p *prices) levelOf(cpu Milli) int { return int(p.level[max(0, min(cpu/p.step, cpuSteps-1))]) }

// levelFor is the lowest level at which a request for that much fits.
func (p *prices) levelFor(cpu Milli) int {
	switch at := (cpu + p.step - 1) / p.step; {
	case at == 0:
		return 0
	case at < cpuSteps:
		return int(p.level[at-1]) + 1
	default:
		return levels
	}
}

// setRoom tables what random requests can use.
func (p *prices) setRoom(e *Engine, parts []float64) {
	p.room = make([][levels]bySize, len(e.fleets))
	p.likely = make([][levels][maxGroups]float64, len(e.fleets))
	for m := range e.fleets {
		room, likely := &p.room[m], &p.likely[m]
		for i := range e.classes {
			s := e.shape(i)
			level := p.levelFor(e.classes[i].CPU)
			if s.GPUs == 0 || !s.allowed[m] || level >= levels {
				continue
			}
			if s.GPUs == 1 {
				room[level][s.size] += parts[i]
			} else if g := slices.Index(p.groups, group{s.GPUs, s.size, e.classes[i].CPU}); g >= 0 {
				likely[level][g] += parts[i]
			}
		}
		for l := range room {
			for g := 1; g <= steps; g++ {
				room[l][g] += room[l][g-1]
			}
			if l == 0 {
				continue
			}
			for g := range room[l] {
				room[l][g] += room[l-1][g]
			}
			for g := range likely[l] {
				likely[l][g] += likely[l-1][g]
			}
		}
		for l := range room {
			for g := range room[l] {
				room[l][g] *= float64(g) * float64(Whole) / steps
			}
		}
	}
}
