// SPDX-License-Identifier: Apache-2.0

package packer

import "iter"

// part is a block of a fleet's tree, down to a single node, with its best score.
type part struct {
	score int32
	// best of its nodes.
	best NodeID
	// fleet, level of its row in the tree (-1 for a node), and which row.
	fleet, level, row int32
}

// before reports whether p is looked at before q.
func (p part) before(q part) bool {
	if p.score != q.score {
		return p.score > q.score
	}
	return p.best < q.best
}

// Ranked are the nodes with room for the request, best first, and the devices
// there. They are for a caller that knows more against a node than the engine does. The
// first costs what Best does, each further one a little. No node may be set
// before the loop has ended.
func (e *Engine) Ranked(r Request) iter.Seq2[NodeID, uint64] {
	return func(yield func(NodeID, uint64) bool) {
		c := e.class(r)
		first, devices, ok := e.choose(c)
		if !ok || !yield(first, devices) {
			return
		}
		e.queue = e.queue[:0]
		for i, f := range e.fleets {
			if top := len(f.tree.levels) - 1; top >= 0 {
				e.offer(c, part{fleet: int32(i), level: int32(top)})
			}
		}
		for len(e.queue) > 0 {
			p := e.next()
			switch {
			case p.best == first && p.level < 0:
				continue
			case p.level < 0:
				_, devices := e.score(e.look(p.best), c)
				if !yield(p.best, devices) {
					return
				}
				continue
			}
			for i := range int32(fan) {
				e.offer(c, part{fleet: p.fleet, level: p.level - 1, row: p.row*fan + i})
			}
		}
	}
}

// offer queues a part of the tree if any of it has room for the class.
func (e *Engine) offer(c int, p part) {
	f := e.fleets[p.fleet]
	at := int(p.row)*f.tree.width + c
	var won entry
	if p.level < 0 {
		won = newEntry(f.tree.scores[at], p.row)
	} else {
		won = f.tree.levels[p.level][at]
	}
	if won.score() == noFit {
		return
	}
	p.score, p.best = won.score()-f.toll*int32(e.classes[c].GPUs), f.nodes[won.slot()]
	q := append(e.queue, p)
	for i := len(q) - 1; i > 0 && q[i].before(q[(i-1)/2]); i = (i - 1) / 2 {
		q[i], q[(i-1)/2] = q[(i-1)/2], q[i]
	}
	e.queue = q
}

// next takes the best part off the queue, a heap.
func (e *Engine) next() part {
	q := e.queue
	first, last := q[0], len(q)-1
	q[0] = q[last]
	e.queue = q[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return first
		}
		if child+1 < last && q[child+1].before(q[child]) {
			child++
		}
		if !q[child].before(q[i]) {
			return first
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
}
