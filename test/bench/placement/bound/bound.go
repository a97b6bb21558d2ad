// SPDX-License-Identifier: Apache-2.0

// Package bound computes what no placement can exceed: the best fractional cutting
// of all devices into the pods that have arrived.
//
// It lets machines of one kind share their CPU and memory, takes any number of
// cuts per device, moves pods freely, takes any part of a pod and refuses
// whichever it likes. Only a whole device's worth of shares must fit on a device,
// and a pod for several devices goes only to machines that have as many.
package bound

import (
	"fmt"
	"slices"

	"vernier.dev/vernier/allocator/placement/lp"
	"vernier.dev/vernier/test/bench/placement/trace"
)

// problem is the linear program: rows are the classes that have arrived, and then
// devices, CPU and memory of every kind of machine.
type problem struct {
	classes []trace.Class
	kinds   []kind
	limits  []float64
	// part is the size, in thousandths of a device, that all shares are multiples
	// of.
	part int
	// turn is the kind to look for a column next.
	turn int
}

type kind struct {
	trace.Node
	count int
	// cpu and mem are what there is of them per device.
	cpu, mem float64
	// best and last are scratch space: the best value of each gap, and the class
	// that it ends with.
	best []float64
	last []int
}

// The rows of a kind after those of the classes, all in devices.
const (
	devices = iota
	cpu
	mem
	perKind
)

// Allocated is the greatest part of all GPUs that the arrivals can fill.
func Allocated(w *trace.Workload, arrivals []int) (float64, error) {
	p := &problem{part: trace.Whole}
	count := map[int]float64{}
	for _, class := range arrivals {
		count[class]++
	}
	for class := range w.Classes {
		if c := w.Classes[class]; c.GPUs > 0 && count[class] > 0 {
			p.classes = append(p.classes, c)
			p.limits = append(p.limits, count[class])
			p.part = divisor(p.part, c.Milli)
		}
	}
	p.addKinds(w.Nodes)
	start := make([]lp.Column, len(p.limits))
	for row := range start {
		start[row] = slack(row)
	}
	_, cost, optimal := lp.Minimize(p.limits, start, 400*len(p.limits), p.next)
	if !optimal {
		return 0, fmt.Errorf("the upper bound's linear program did not end")
	}
	return -cost * trace.Whole / float64(w.Capacity()), nil
}

// divisor is the greatest that a and b have in common.
func divisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func slack(row int) lp.Column { return lp.Column{Entries: []lp.Entry{{Row: row, Value: 1}}} }

func (p *problem) addKinds(nodes []trace.Node) {
	for _, n := range nodes {
		n.Name = ""
		at := slices.IndexFunc(p.kinds, func(k kind) bool { return k.Node == n })
		if n.GPUs == 0 {
			continue
		}
		if at < 0 {
			at = len(p.kinds)
			gpus := float64(n.GPUs)
			p.kinds = append(p.kinds, kind{
				Node: n, cpu: max(1, float64(n.CPU)/gpus), mem: max(1, float64(n.Mem)/gpus),
				best: make([]float64, trace.Whole/p.part+1), last: make([]int, trace.Whole/p.part+1),
			})
		}
		p.kinds[at].count++
	}
	for i := range p.kinds {
		k := &p.kinds[i]
		n := float64(k.count)
		p.limits = append(p.limits, n*float64(k.GPUs), n*float64(k.CPU)/k.cpu, n*float64(k.Mem)/k.mem)
	}
}

// next is a way to cut a device that improves the plan at the rows' prices.
func (p *problem) next(prices []float64) (lp.Column, bool) {
	for row, price := range prices {
		// All costs are below zero, and so are the prices of what is scarce.
		if price > 2*lp.Epsilon {
			return slack(row), true
		}
	}
	for range p.kinds {
		p.turn = (p.turn + 1) % len(p.kinds)
		if c, ok := p.cut(p.turn, prices); ok {
			return c, true
		}
	}
	return lp.Column{}, false
}

// cut is the best way to cut a device of a kind. A pod for several devices is as
// many shares, each of which takes its part of the pod's CPU and memory.
func (p *problem) cut(at int, prices []float64) (lp.Column, bool) {
	k, first := &p.kinds[at], len(p.classes)+at*perKind
	clear(k.best)
	clear(k.last)
	for i := range p.classes {
		c := &p.classes[i]
		if c.GPUs > k.GPUs || c.CPU > k.CPU || c.Mem > k.Mem || !trace.Allows(c.Spec, k.Model) {
			continue
		}
		gain := float64(c.Demand())/trace.Whole + prices[i] + prices[first+cpu]*float64(c.CPU)/k.cpu + prices[first+mem]*float64(c.Mem)/k.mem
		gain /= float64(c.GPUs)
		if size := c.Milli / p.part; gain > k.best[size] {
			k.best[size], k.last[size] = gain, i+1
		}
	}
	k.fill()
	if k.best[len(k.best)-1]+prices[first+devices] <= tolerance {
		return lp.Column{}, false
	}
	return p.column(k, first), true
}

// tolerance is what a cut must gain, in devices.
const tolerance = 1e-8

// fill turns the best single share of each size into the best cut of each gap.
func (k *kind) fill() {
	single, ends := slices.Clone(k.best), slices.Clone(k.last)
	var sizes []int
	for size, gain := range single {
		if gain > 0 {
			sizes = append(sizes, size)
		}
	}
	for g := 1; g < len(k.best); g++ {
		k.best[g], k.last[g] = k.best[g-1], 0
		for _, size := range sizes {
			if size > g {
				break
			}
			if v := k.best[g-size] + single[size]; v > k.best[g] {
				k.best[g], k.last[g] = v, ends[size]
			}
		}
	}
}

// column is the best cut of a whole device.
func (p *problem) column(k *kind, first int) lp.Column {
	shares := make([]float64, len(p.classes))
	for g := len(k.best) - 1; g > 0; {
		if k.last[g] == 0 {
			g--
			continue
		}
		i := k.last[g] - 1
		shares[i]++
		g -= p.classes[i].Milli / p.part
	}
	col := lp.Column{Entries: []lp.Entry{{Row: first + devices, Value: 1}}}
	var cores, memory float64
	for i, n := range shares {
		if n == 0 {
			continue
		}
		c := &p.classes[i]
		n /= float64(c.GPUs)
		col.Cost -= n * float64(c.Demand()) / trace.Whole
		cores += n * float64(c.CPU) / k.cpu
		memory += n * float64(c.Mem) / k.mem
		col.Entries = append(col.Entries, lp.Entry{Row: i, Value: n})
	}
	if cores > 0 {
		col.Entries = append(col.Entries, lp.Entry{Row: first + cpu, Value: cores})
	}
	if memory > 0 {
		col.Entries = append(col.Entries, lp.Entry{Row: first + mem, Value: memory})
	}
	return col
}
