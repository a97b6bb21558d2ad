// SPDX-License-Identifier: Apache-2.0

package packer

import "math"

// fleet is all nodes with one model of device. Each has a tree of its own, so
// that what it costs to use a model can change without scoring its nodes again.
type fleet struct {
	model string
	nodes []NodeID
	tree  tree
	// have is the number of devices, free the sum of their gaps in steps.
	have, free int
	// toll is what one device costs beyond its node's score, in units of scores.
	toll int32
	// asked and spread are the mean and variance of the demand that only some
	// models can serve, in devices of this one.
	asked, spread float64
}

// What a device is worth to those who can use few models only: a whole one when
// it is sure to be missed, and a little as they are more likely to need it.
const (
	tollWhenMissed = worthWhenMissed
	tollByPart     = 30
)

// priorAsk is how many arrivals are believed, before any has come, to insist on
// one model or another: the rare ones are kept until it is known better.
const priorAsk = 4

// setTolls weighs the demand that insists on a model, until as much has arrived as
// is free now, against what is free of it.
func (e *Engine) setTolls() {
	free := 0
	for _, f := range e.fleets {
		f.asked, f.spread = 0, 0
		free += f.free
	}
	p := e.prices
	if free == 0 {
		return
	}
	// horizon is the number of arrivals until then.
	horizon := 0.0
	if p.demand > 0 {
		horizon = float64(free) / steps / p.demand
	}
	for _, s := range p.insist {
		allowed := 0
		for m, f := range e.fleets {
			if s.models>>m&1 == 1 {
				allowed += f.free
			}
		}
		for m, f := range e.fleets {
			if s.models>>m&1 == 1 && allowed > 0 {
				part := horizon * float64(f.free) / float64(allowed)
				f.asked += part * s.mean
				f.spread += part * s.square
			}
		}
	}
	believed := float64(free) / steps * p.unsure / float64(len(e.fleets))
	for _, f := range e.fleets {
		left, asked := float64(f.free)/steps, f.asked+believed
		missed := math.Erfc((left-asked)/math.Sqrt(2*(f.spread+believed+0.1))) / 2
		f.toll = int32(perMilli * (tollWhenMissed*missed + tollByPart*min(1, asked/max(left, 1))))
	}
}

// choose finds the best node for the class, and the devices there.
func (e *Engine) choose(c int) (id NodeID, devices uint64, ok bool) {
	best, gpus := int32(noFit), int32(e.classes[c].GPUs)
	for _, f := range e.fleets {
		w := f.tree.winner(c)
		if w.score() == noFit {
			continue
		}
		score, at := w.score()-f.toll*gpus, f.nodes[w.slot()]
		if !ok || score > best || score == best && at < id {
			best, id, ok = score, at, true
		}
	}
	if ok {
		_, devices = e.score(e.look(id), c)
	}
	return id, devices, ok
}
