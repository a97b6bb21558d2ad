// SPDX-License-Identifier: Apache-2.0

package packer

import "math"

// walk is a change of prices under way. First nodes are counted, to know what is
// scarce; if that or anything else makes the prices notably others, nodes are then
// scored by them. Both go node by node, a few at a time, so that no decision waits
// for long however large the cluster. Where the walk has not been yet the former
// prices count, for the index as for a scan.
type walk struct {
	// next prices, for which nodes are counted, and whether they are made anew.
	next *prices
	anew bool
	// have is how many places for each group have been counted.
	have [maxGroups]float64
	// former prices, of the nodes that are not scored by the new ones yet.
	former *prices
	// at is the first node that is not counted, or not scored.
	at NodeID
}

const (
	// atOnce is how many nodes are scored per arrival.
	atOnce = 32
	// counting is how many nodes are counted in the time that one is scored.
	counting = 16
)

// Reprice looks at the pods that have arrived, when enough have. Where
// that changes the worth of things it scores the nodes again. A call does a
// piece of that, the time of some 32 decisions at most for each arrival since the
// last call. So it is for moments between decisions. The scarce is looked at as
// many arrivals apart as a 64th of the devices, values as an eighth; more often at
// first.
func (e *Engine) Reprice() {
	piece := atOnce * max(1, min(e.mix.arrivals-e.repriced, len(e.nodes)))
	e.repriced = e.mix.arrivals
	if e.walk.next == nil && e.walk.former == nil {
		now := e.mix.arrivals
		if now < e.due {
			return
		}
		e.due = now + max(1, min(now/4, max(32, e.total/64)))
		same := *e.prices
		e.walk = walk{next: &same}
		if now >= e.again {
			e.again = now + max(1, min(now/4, max(32, e.total/8)))
			e.learnAgain()
		}
	}
	e.step(piece)
}

// learnAgain works out the next prices anew, if that makes them notably others.
func (e *Engine) learnAgain() {
	mem := e.meanMem()
	for i := range e.shapes {
		e.shapes[i].size = e.shapes[i].Request.size(mem)
	}
	if p := e.learn(); p.differ(e.prices) {
		e.walk.next, e.walk.anew = p, true
	}
}

// step goes on with the walk, for the time that it takes to score as many nodes.
func (e *Engine) step(nodes int) {
	w := &e.walk
	if w.next != nil {
		if !e.count(nodes * counting) {
			return
		}
		e.adopt()
	}
	if w.former == nil {
		return
	}
	for end := min(int(w.at)+nodes, len(e.nodes)); int(w.at) < end; {
		// From here on the node is scored by the new prices.
		w.at++
		e.scoreNode(w.at - 1)
	}
	if int(w.at) == len(e.nodes) {
		e.walk = walk{}
	}
}

// count counts the places for groups on as many more nodes; true when it has been
// to all.
func (e *Engine) count(nodes int) bool {
	w := &e.walk
	if len(w.next.groups) == 0 {
		return true
	}
	for end := min(int(w.at)+nodes, len(e.nodes)); int(w.at) < end; w.at++ {
		gaps := e.gapsOf(w.at)
		for j := range w.next.groups {
			g := &w.next.groups[j]
			w.have[j] += float64(g.places(g.count(gaps), e.nodes[w.at].cpu))
		}
	}
	return int(w.at) == len(e.nodes)
}

// adopt takes the next prices into use: at once for what is not part of nodes'
// scores, and if these change by it, node by node.
func (e *Engine) adopt() {
	now, done := e.prices, e.walk
	e.prices, e.walk = done.next, walk{}
	e.prices.setScarce(e, &done.have)
	if done.anew || scarcer(&now.slot, &e.prices.slot) || math.Abs(e.prices.turned-now.turned) > 1./8 {
		e.walk.former = now
	} else {
		// Nodes must be scored by what others were.
		e.prices.slot, e.prices.places, e.prices.turned = now.slot, now.places, now.turned
	}
	e.setTolls()
}

// pricesOf are those by which the node is scored.
func (e *Engine) pricesOf(id NodeID) *prices {
	if e.walk.former != nil && id >= e.walk.at {
		return e.walk.former
	}
	return e.prices
}
