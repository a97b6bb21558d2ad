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

// setRoom tables what random requests can use.
func (p *prices) setRoom(e *Engine, parts []float64) {
	p.room = make([][levels]bySize, len(e.fleets))
	p.likely = make([][levels][maxGroups]float64, len(e.fleets))
	for m := range e.fleets {
		room, likely := &p.room[m], &p.likely[m]
		for i := range e.classes {
			s := e.shape(i)
			level := int((e.classes[i].CPU + p.step - 1) / p.step)
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
