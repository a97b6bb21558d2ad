// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math/bits"
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// NodeID numbers the nodes in the order in which they were added. Among equal
// nodes the lowest is taken.
type NodeID int32

// Engine packs. The zero value does not; use New.
type Engine struct {
	allows  func(models, model string) bool
	models  []string
	kinds   []kind
	nodes   []node
	free    []Free
	classes []class
	byShape map[Request]int
	mix     mix
	// total is the number of all devices.
	total int
	// due is the number of arrivals at which prices are worked out anew.
	due    int
	prices *prices

	tree  tree
	view  view
	after view
}

type kind struct {
	Machine
	model int
}

type node struct {
	kind  int32
	first int32
	cpu   Milli
	mem   v1alpha1.MiB
}

type class struct {
	Request
	// size on the mean device.
	size int
	// allowed by number of model.
	allowed []bool
}

// New is an engine without nodes. allows tells whether a request's Models, which
// are not empty, admit a machine's Model.
func New(allows func(models, model string) bool) *Engine {
	e := &Engine{allows: allows, byShape: map[Request]int{}, mix: mix{now: 1}}
	e.tree.width = minClasses
	e.learn()
	return e
}

// AddNode adds an empty machine.
func (e *Engine) AddNode(m Machine) NodeID {
	id := NodeID(len(e.nodes))
	e.nodes = append(e.nodes, node{kind: e.kindOf(m), first: int32(len(e.free)), cpu: m.CPU, mem: m.Mem})
	for range m.Devices {
		e.free = append(e.free, Free{Whole, m.DeviceMem})
	}
	e.total += m.Devices
	if e.tree.add(len(e.nodes)) {
		e.rate()
	} else {
		e.update(id)
	}
	return id
}

func (e *Engine) kindOf(m Machine) int32 {
	for i := range e.kinds {
		if e.kinds[i].Machine == m {
			return int32(i)
		}
	}
	k := kind{Machine: m, model: slices.Index(e.models, m.Model)}
	if k.model < 0 {
		k.model = len(e.models)
		e.models = append(e.models, m.Model)
		for i := range e.classes {
			e.classes[i].allowed = append(e.classes[i].allowed, e.admits(&e.classes[i].Request, m.Model))
		}
	}
	e.kinds = append(e.kinds, k)
	e.learn()
	e.rate()
	return int32(len(e.kinds) - 1)
}

func (e *Engine) admits(r *Request, model string) bool {
	return r.Models == "" || e.allows(r.Models, model)
}

// Place decides on a pod that arrives: it learns the request, and books the best
// node and devices. False when no node has the room.
func (e *Engine) Place(r Request) (id NodeID, devices uint64, ok bool) {
	c := e.class(r)
	e.mix.add(c, e.total)
	win := e.tree.winner(c)
	if win.score == noFit {
		return 0, 0, false
	}
	_, devices = e.score(e.look(win.node), &e.classes[c])
	e.book(win.node, &e.classes[c], devices, 1)
	e.update(win.node)
	return win.node, devices, true
}

// Release gives back what Place booked.
func (e *Engine) Release(r Request, id NodeID, devices uint64) {
	e.book(id, &e.classes[e.class(r)], devices, -1)
	e.update(id)
}

// class finds the request's class, or makes it.
func (e *Engine) class(r Request) int {
	if c, ok := e.byShape[r]; ok {
		return c
	}
	c := len(e.classes)
	e.byShape[r] = c
	e.classes = append(e.classes, class{Request: r})
	e.mix.weight = append(e.mix.weight, 0)
	for _, m := range e.models {
		e.classes[c].allowed = append(e.classes[c].allowed, e.admits(&r, m))
	}
	e.measure(&e.classes[c])
	if c == e.tree.width {
		e.tree.width *= 2
		e.tree.resize(cap(e.tree.scores) / c)
		e.rate()
		return c
	}
	for id := range e.nodes {
		s, _ := e.score(e.look(NodeID(id)), &e.classes[c])
		e.tree.set(c, NodeID(id), s)
	}
	return c
}

// measure works out the class's size on the mean device.
func (e *Engine) measure(c *class) {
	var mem v1alpha1.MiB
	n := 0
	for i := range e.nodes {
		k := &e.kinds[e.nodes[i].kind]
		mem += k.DeviceMem * v1alpha1.MiB(k.Devices)
		n += k.Devices
	}
	c.size = c.Request.size(mem / v1alpha1.MiB(max(n, 1)))
}

// update scores the node for all classes.
func (e *Engine) update(id NodeID) {
	v := e.look(id)
	for c := range e.classes {
		s, _ := e.score(v, &e.classes[c])
		e.tree.set(c, id, s)
	}
}

// rate scores all nodes for all classes.
func (e *Engine) rate() {
	e.tree.clear()
	for id := range e.nodes {
		e.update(NodeID(id))
	}
}

// Reprice works out prices from what has arrived, when enough has since the last
// time. It costs as much as some thousands of decisions, and is due so rarely
// that it adds little to one: as many arrivals apart as a quarter of the devices.
func (e *Engine) Reprice() {
	if e.mix.arrivals < e.due {
		return
	}
	e.due = e.mix.arrivals + max(16, min(e.mix.arrivals/2, e.total/4))
	for i := range e.classes {
		e.measure(&e.classes[i])
	}
	e.learn()
	e.rate()
}

func (e *Engine) devices(id NodeID) []Free {
	n := &e.nodes[id]
	return e.free[n.first : int(n.first)+e.kinds[n.kind].Devices]
}

// book takes what the class needs off the node's devices, or gives it back with
// sign -1.
func (e *Engine) book(id NodeID, c *class, devices uint64, sign int64) {
	n := &e.nodes[id]
	n.cpu -= Milli(sign) * c.CPU
	n.mem -= v1alpha1.MiB(sign) * c.HostMem
	free := e.devices(id)
	need := c.memOn(e.kinds[n.kind].DeviceMem)
	for ; devices != 0; devices &= devices - 1 {
		f := &free[bits.TrailingZeros64(devices)]
		f.Core -= Milli(sign) * c.Core
		f.Mem -= v1alpha1.MiB(sign) * need
	}
}
