// SPDX-License-Identifier: Apache-2.0

package packer

import "slices"

// class is a set of equal requests.
type class struct {
	Request
	shape int
}

// shape is what classes that differ only in what they need of the host share.
type shape struct {
	Request
	// size on the mean device, in steps.
	size int
	// allowed by number of model.
	allowed []bool
	classes []int
}

// part is the part of all devices' worth that one pod takes, in devices.
func (s *shape) part() float64 { return float64(s.GPUs*s.size) / steps }

// class finds the request's class, or makes it. A new class is scored on every
// node once; after that it is kept up to date with all others.
func (e *Engine) class(r Request) int {
	if c, ok := e.byRequest[r]; ok {
		return c
	}
	if len(e.classes) == maxClasses {
		return e.replace(r)
	}
	c := len(e.classes)
	e.classes = append(e.classes, class{})
	e.mix.weight = append(e.mix.weight, 0)
	e.best = append(e.best, noFit)
	e.define(c, r)
	wide := false
	for _, f := range e.fleets {
		wide = f.tree.widen(len(e.classes)) || wide
	}
	if wide {
		e.scoreAll()
	} else {
		e.scoreClass(c)
	}
	return c
}

// maxClasses bounds memory and the time of an update. The trace has 151.
const maxClasses = 1024

// replace gives the class that was asked for least to the request.
func (e *Engine) replace(r Request) int {
	c := 0
	for i, w := range e.mix.weight {
		if w < e.mix.weight[c] {
			c = i
		}
	}
	s := &e.shapes[e.classes[c].shape]
	s.classes = slices.DeleteFunc(s.classes, func(other int) bool { return other == c })
	delete(e.byRequest, e.classes[c].Request)
	e.mix.weight[c] = 0
	e.define(c, r)
	e.scoreClass(c)
	return c
}

// define makes c the request's class.
func (e *Engine) define(c int, r Request) {
	e.byRequest[r] = c
	bare := r
	bare.CPU, bare.HostMem = 0, 0
	at := slices.IndexFunc(e.shapes, func(s shape) bool { return s.Request == bare })
	if at < 0 {
		at = len(e.shapes)
		s := shape{Request: bare, size: bare.size(e.meanMem())}
		for _, f := range e.fleets {
			s.allowed = append(s.allowed, e.admits(&bare, f.model))
		}
		e.shapes = append(e.shapes, s)
	}
	e.shapes[at].classes = append(e.shapes[at].classes, c)
	e.classes[c] = class{Request: r, shape: at}
}

func (e *Engine) admits(r *Request, model string) bool {
	return r.Models == "" || e.allows(r.Models, model)
}

// meanMem is the memory of the mean device.
func (e *Engine) meanMem() MiB { return max(1, e.memory/MiB(max(e.total, 1))) }
