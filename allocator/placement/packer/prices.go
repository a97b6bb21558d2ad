// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"cmp"
	"slices"
)

const (
	// cpuPrices is how many prices of the host's CPU a node is valued at.
	cpuPrices = 6
	// levels of free CPU that usable room is tabled by.
	levels = 64
	// maxGroups is how many shapes of requests for several devices are told apart.
	maxGroups = 8
)

// group is a shape of requests for several devices.
type group struct {
	gpus, size int
}

// prices is what the engine has learnt, as tables.
type prices struct {
	// cpu are prices of a thousandth of a core, in thousandths of a device.
	cpu [cpuPrices]float64
	// value is what a gap is worth at each of them, in thousandths of a device.
	value [steps + 1][cpuPrices]float64
	// step is the CPU between two levels.
	step Milli
	// room[model][level][gap] is the part of a gap, in thousandths of a device,
	// that a random request for one device could use at that level of free CPU.
	room [][levels][steps + 1]float64
	// groups are the requests for several devices, and likely[model][level][group]
	// is how frequent those are that the model and the CPU allow.
	groups []group
	likely [][levels][maxGroups]float64
	// scarcity of each model: the demand that only some models can serve over what
	// there is of them.
	scarcity []float64
}

// learn works out the tables from what has arrived.
func (e *Engine) learn() {
	p := &prices{step: 1}
	for i := range e.kinds {
		p.step = max(p.step, (e.kinds[i].CPU+levels-2)/(levels-1))
	}
	parts, unit := e.mix.parts()
	p.setValues(e, parts, unit)
	p.setGroups(e, parts)
	p.setRoom(e, parts, unit)
	p.setScarcity(e, parts)
	e.prices = p
}

// setValues prices gaps: the duals of cutting devices into what arrives.
func (p *prices) setValues(e *Engine, parts []float64, unit float64) {
	var shares [steps + 1]share
	add := func(size int, demand, cpu float64) {
		s := &shares[size]
		s.cpu = (s.cpu*s.demand + cpu*demand) / (s.demand + demand)
		s.demand += demand
	}
	var gpu, cpu float64
	for i := range e.classes {
		c := &e.classes[i]
		if c.GPUs == 0 || parts[i] == 0 {
			continue
		}
		n := parts[i] * float64(c.GPUs)
		add(c.size, n, float64(c.CPU)/float64(c.GPUs))
		gpu += n * float64(c.size) * float64(Whole) / steps
		cpu += parts[i] * float64(c.CPU)
	}
	for _, b := range prior {
		add(b.size, b.weight*unit, 0)
	}
	for k := 1; k < cpuPrices && cpu > 0; k++ {
		// From an eighth to twice what a core is used for on average.
		p.cpu[k] = gpu / cpu * float64(int(1)<<k) / 16
	}
	prices := sharePrices(&shares)
	var sizes []int
	for size := range shares {
		if shares[size].demand > 0 {
			sizes = append(sizes, size)
		}
	}
	for k := range p.cpu {
		var values, best [steps + 1]float64
		for _, size := range sizes {
			values[size] = max(0, float64(Whole)*prices[size]-p.cpu[k]*shares[size].cpu)
		}
		fill(&values, sizes, &best)
		for g := range best {
			p.value[g][k] = best[g]
		}
	}
}

// setGroups keeps the most frequent shapes for several devices.
func (p *prices) setGroups(e *Engine, parts []float64) {
	weight := map[group]float64{}
	for i := range e.classes {
		if c := &e.classes[i]; c.GPUs > 1 && parts[i] > 0 {
			weight[group{c.GPUs, c.size}] += parts[i] * float64(c.GPUs*c.size)
		}
	}
	for g := range weight {
		p.groups = append(p.groups, g)
	}
	slices.SortFunc(p.groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(weight[b], weight[a]), cmp.Compare(a.gpus, b.gpus), cmp.Compare(a.size, b.size))
	})
	p.groups = p.groups[:min(len(p.groups), maxGroups)]
}

// setRoom tables what random requests could use.
func (p *prices) setRoom(e *Engine, parts []float64, unit float64) {
	p.room = make([][levels][steps + 1]float64, len(e.models))
	p.likely = make([][levels][maxGroups]float64, len(e.models))
	for m := range e.models {
		room, likely := &p.room[m], &p.likely[m]
		for i := range e.classes {
			c := &e.classes[i]
			level := int((c.CPU + p.step - 1) / p.step)
			if c.GPUs == 0 || !c.allowed[m] || level >= levels {
				continue
			}
			if c.GPUs == 1 {
				room[level][c.size] += parts[i]
			} else if g := slices.Index(p.groups, group{c.GPUs, c.size}); g >= 0 {
				likely[level][g] += parts[i]
			}
		}
		for _, b := range prior {
			room[0][b.size] += b.weight * unit
		}
		for l := range room {
			for g := 1; g <= steps; g++ {
				room[l][g] += room[l][g-1]
			}
		}
		for l := 1; l < levels; l++ {
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

// setScarcity compares what is asked of each model alone with what there is.
func (p *prices) setScarcity(e *Engine, parts []float64) {
	p.scarcity = make([]float64, len(e.models))
	have := make([]float64, len(e.models))
	all := 0.0
	for i := range e.nodes {
		k := &e.kinds[e.nodes[i].kind]
		have[k.model] += float64(k.Devices)
		all += float64(k.Devices)
	}
	demand := 0.0
	for i := range e.classes {
		demand += parts[i] * float64(e.classes[i].GPUs*e.classes[i].size) / steps
	}
	if demand == 0 {
		return
	}
	for i := range e.classes {
		c := &e.classes[i]
		allowed := 0.0
		for m := range have {
			if c.allowed[m] {
				allowed += have[m]
			}
		}
		if allowed == 0 || allowed == all {
			continue
		}
		// Were as much asked for as there is, this much of it would be the class's.
		asked := parts[i] * float64(c.GPUs*c.size) / steps / demand * all
		for m := range have {
			if c.allowed[m] {
				p.scarcity[m] += asked / allowed
			}
		}
	}
}
