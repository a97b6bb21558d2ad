// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// Engine packs. The zero value does not; use New.
type Engine struct {
	allows func(models, model string) bool

	kinds  []kind
	byKind map[Machine]int
	nodes  []node
	free   []Free
	gaps   []uint8
	// near is of which sets of its node each device is.
	near   []v1alpha1.Near
	fleets []*fleet
	// total is the number of all devices, memory what they have together.
	total  int
	memory MiB
	// mostCPU is that of the largest host.
	mostCPU Milli

	classes   []class
	shapes    []shape
	byRequest map[Request]int
	mix       mix
	prices    *prices
	walk      walk
	// repriced is the number of arrivals at the last Reprice.
	repriced int
	// due is the number of arrivals at which to look at what is scarce again.
	due int
	// again is that at which to look at values too.
	again int
	// shares are the prices of shares of each size, in devices.
	shares bySize
	// came is how many devices all arrivals asked for.
	came float64

	// Scratch space of one update.
	view view
	cand candidate
	best []int32
	// queue of Ranked.
	queue []part
}

type kind struct {
	Machine
	fleet int
	// nodes of this kind.
	nodes int
}

type node struct {
	kind int32
	// first of the node's devices in free and gaps; slot in the fleet's tree.
	first, slot int32
	cpu         Milli
	mem         v1alpha1.MiB
}

// New is an engine without nodes. allows reports whether a request's Models, which
// are not empty, admit a machine's Model.
func New(allows func(models, model string) bool) *Engine {
	e := &Engine{allows: allows, byKind: map[Machine]int{}, byRequest: map[Request]int{}, mix: mix{now: 1}}
	e.prices = e.learn()
	return e
}

// AddNode adds an empty machine.
func (e *Engine) AddNode(m Machine) NodeID {
	id := NodeID(len(e.nodes))
	k := e.kindOf(m)
	f := e.fleets[e.kinds[k].fleet]
	e.kinds[k].nodes++
	e.nodes = append(e.nodes, node{kind: int32(k), first: int32(len(e.free)), slot: int32(len(f.nodes)), cpu: m.CPU, mem: m.Mem})
	f.nodes = append(f.nodes, id)
	for range m.Devices {
		e.free = append(e.free, Free{Whole, m.DeviceMem})
		e.gaps = append(e.gaps, steps)
		e.near = append(e.near, v1alpha1.Near{})
	}
	e.total += m.Devices
	e.memory += m.DeviceMem * MiB(m.Devices)
	f.have += m.Devices
	f.free += m.Devices * steps
	if f.tree.grow(len(f.nodes), len(e.classes)) {
		e.scoreFleet(f)
	} else {
		e.scoreNode(id)
	}
	return id
}

func (e *Engine) kindOf(m Machine) int {
	if k, ok := e.byKind[m]; ok {
		return k
	}
	e.byKind[m] = len(e.kinds)
	e.mostCPU = max(e.mostCPU, m.CPU)
	fleet := slices.IndexFunc(e.fleets, func(f *fleet) bool { return f.model == m.Model })
	if fleet < 0 {
		fleet = e.addFleet(m)
	}
	e.kinds = append(e.kinds, kind{Machine: m, fleet: fleet})
	return len(e.kinds) - 1
}

// addFleet makes room for another model. Prices have tables by model, so they are
// made anew, at once.
func (e *Engine) addFleet(m Machine) int {
	e.fleets = append(e.fleets, &fleet{model: m.Model})
	for i := range e.shapes {
		s := &e.shapes[i]
		s.allowed = append(s.allowed, e.admits(&s.Request, m.Model))
	}
	e.walk = walk{next: e.learn(), anew: true}
	e.step(len(e.nodes) + 1)
	return len(e.fleets) - 1
}

// Learn takes note that a pod with that request has arrived. Once per pod, however
// often it is decided on.
func (e *Engine) Learn(r Request) {
	c := e.class(r)
	e.mix.add(c, e.total)
	e.came += e.shape(c).part()
}

// Best is the best node for a pod with that request, and the devices there, a set of
// bits. False when no node has the room.
func (e *Engine) Best(r Request) (id NodeID, devices uint64, ok bool) {
	return e.choose(e.class(r))
}

// Set changes what is free of a node to what its owner says: nothing for a node
// that takes no pods. There are as many devices as the machine has.
func (e *Engine) Set(id NodeID, cpu Milli, mem MiB, free []Free) {
	n := &e.nodes[id]
	k := &e.kinds[n.kind]
	n.cpu, n.mem = cpu, mem
	for d, f := range free {
		e.change(int(n.first)+d, k, f)
	}
	e.scoreNode(id)
}

// SetNear changes of which sets of the node its devices are, if they were of others.
func (e *Engine) SetNear(id NodeID, near []v1alpha1.Near) {
	if was := e.Near(id); !slices.Equal(was, near) {
		copy(was, near)
		e.scoreNode(id)
	}
}

// change sets what is free of a device.
func (e *Engine) change(d int, k *kind, f Free) {
	e.fleets[k.fleet].free -= int(e.gaps[d])
	e.free[d], e.gaps[d] = f, gap(f, k.DeviceMem)
	e.fleets[k.fleet].free += int(e.gaps[d])
}

// scoreNode scores the node for all classes.
func (e *Engine) scoreNode(id NodeID) {
	v := e.look(id)
	t := &e.fleets[v.kind.fleet].tree
	for i := range e.shapes {
		s := &e.shapes[i]
		e.scoreShape(v, s)
		for _, c := range s.classes {
			t.set(c, v.slot, e.best[c])
		}
	}
}

// scoreClass scores all nodes for one class.
func (e *Engine) scoreClass(c int) {
	for id := range e.nodes {
		v := e.look(NodeID(id))
		s, _ := e.score(v, c)
		e.fleets[v.kind.fleet].tree.set(c, v.slot, s)
	}
}

func (e *Engine) scoreFleet(f *fleet) {
	f.tree.clear()
	for _, id := range f.nodes {
		e.scoreNode(id)
	}
}

func (e *Engine) scoreAll() {
	for _, f := range e.fleets {
		e.scoreFleet(f)
	}
}
