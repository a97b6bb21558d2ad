// SPDX-License-Identifier: Apache-2.0

// Package bound computes what no placement can exceed: the best fractional cutting
// of all devices into the pods that have arrived.
//
// It lets machines of one kind share their CPU and memory, takes any number of
// cuts per device, moves pods freely and refuses whichever it likes. Only a whole
// device's worth of shares must fit on a device, and a pod for several devices on
// a machine that has them.
package bound

import (
	"fmt"
	"slices"

	"vernier.dev/vernier/allocator/placement/lp"
	"vernier.dev/vernier/test/bench/placement/trace"
)

// parts is how many parts a device is cut into. Shares round down, which only
// raises the bound.
const parts = 100

// problem is the linear program: rows are the classes that have arrived, and then
// devices, CPU and memory of every kind of machine.
type problem struct {
	classes []trace.Class
	kinds   []kind
	limits  []float64
	// turn is the kind to look for a column next.
	turn int
}

type kind struct {
	trace.Node
	count int
	// best and last are scratch space: the best value of each gap, and the class
	// that it ends with.
	best [parts + 1]float64
	last [parts + 1]int
}

// The rows of a kind after those of the classes.
const (
	devices = iota
	cpu
	mem
	perKind
)

// Allocated is the greatest part of all GPUs that the arrivals can fill.
func Allocated(w *trace.Workload, arrivals []int) (float64, error) {
	p := &problem{}
	count := map[int]float64{}
	for _, class := range arrivals {
		count[class]++
	}
	for class := range w.Classes {
		if c := w.Classes[class]; c.GPUs > 0 && count[class] > 0 {
			p.classes = append(p.classes, c)
			p.limits = append(p.limits, count[class])
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
	return -cost / float64(w.Capacity()), nil
}

func slack(row int) lp.Column { return lp.Column{Entries: []lp.Entry{{Row: row, Value: 1}}} }

func (p *problem) addKinds(nodes []trace.Node) {
	for _, n := range nodes {
		n.Name = ""
		at := slices.IndexFunc(p.kinds, func(k kind) bool { return k.Node == n })
		if at < 0 {
			at = len(p.kinds)
			p.kinds = append(p.kinds, kind{Node: n})
		}
		p.kinds[at].count++
	}
	for i := range p.kinds {
		k := &p.kinds[i]
		n := float64(k.count)
		p.limits = append(p.limits, n*float64(k.GPUs), n*float64(k.CPU), n*float64(k.Mem))
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

func (p *problem) cut(at int, prices []float64) (lp.Column, bool) {
	k, first := &p.kinds[at], len(p.classes)+at*perKind
	k.best, k.last = [parts + 1]float64{}, [parts + 1]int{}
	most, pod := tolerance, -1
	for i := range p.classes {
		c := &p.classes[i]
		if c.GPUs > k.GPUs || c.CPU > k.CPU || c.Mem > k.Mem || !trace.Allows(c.Spec, k.Model) {
			continue
		}
		gain := float64(c.Demand()) + prices[i] + prices[first+cpu]*float64(c.CPU) + prices[first+mem]*float64(c.Mem)
		if size := c.Milli * parts / trace.Whole; c.GPUs == 1 && size > 0 {
			if gain > k.best[size] {
				k.best[size], k.last[size] = gain, i+1
			}
		} else if gain += prices[first+devices] * float64(c.GPUs); gain > most {
			most, pod = gain, i
		}
	}
	if pod >= 0 {
		return p.column(first, map[int]float64{pod: 1}, float64(p.classes[pod].GPUs)), true
	}
	k.fill()
	if k.best[parts]+prices[first+devices] <= tolerance {
		return lp.Column{}, false
	}
	return p.column(first, k.read(p.classes), 1), true
}

// tolerance is what a cut must gain, in thousandths of a device.
const tolerance = 1e-6

// fill turns the best single share of each size into the best cut of each gap.
func (k *kind) fill() {
	single, ends := k.best, k.last
	for g := 1; g <= parts; g++ {
		k.best[g], k.last[g] = k.best[g-1], 0
		for size := 1; size <= g; size++ {
			if v := k.best[g-size] + single[size]; single[size] > 0 && v > k.best[g] {
				k.best[g], k.last[g] = v, ends[size]
			}
		}
	}
}

// read lists the classes of the best cut of a whole device.
func (k *kind) read(classes []trace.Class) map[int]float64 {
	counts := map[int]float64{}
	for g := parts; g > 0; {
		if k.last[g] == 0 {
			g--
			continue
		}
		i := k.last[g] - 1
		counts[i]++
		g -= classes[i].Milli * parts / trace.Whole
	}
	return counts
}

func (p *problem) column(first int, counts map[int]float64, of float64) lp.Column {
	col := lp.Column{Entries: []lp.Entry{{Row: first + devices, Value: of}}}
	var cores, memory float64
	for i, n := range counts {
		c := &p.classes[i]
		col.Cost -= n * float64(c.Demand())
		cores += n * float64(c.CPU)
		memory += n * float64(c.Mem)
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
