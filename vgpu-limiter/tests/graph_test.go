// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"testing"
)

// What graph_alloc takes, as in programs/graphs.h.
const (
	frees     = 1
	uploads   = 2
	autoFrees = 4
	byCapture = 8
	byParams  = 16
)

// TestGraphMemory: what a graph allocates is charged to the device of its node
// before the launch or upload that takes it, stays charged while the driver keeps
// it, and is kept once, however often the graph is launched.
func TestGraphMemory(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]int{"nodes": 0, "parameters": byParams, "capture": byCapture} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, share{0, 100})
			p := c.start()
			p.do(fmt.Sprintf("graph_alloc 1 60 0 %d", how|frees), fmt.Sprintf("graph_alloc 2 101 0 %d", how|frees))
			p.wantUsed(0, 100) // addresses only
			p.want("alloc 1 50", ok)
			p.want("graph_launch 1 0", outOfMemory)
			p.want("graph_upload 1 0", outOfMemory)
			if held := c.held(0); held != 50 {
				t.Errorf("after a refused launch the device holds %d MiB, want 50", held)
			}
			p.want("free 1", ok)
			for range 3 {
				p.want("graph_launch 1 0", ok)
				p.wantUsed(60, 100)
			}
			p.want("graph_launch 2 0", outOfMemory)
			p.wantUsed(60, 100)
			p.want("alloc 1 90", ok) // what the graph has left is given back for it
			p.wantUsed(90, 100)
			p.want("graph_launch 1 0", outOfMemory)
			p.do("free 1", "graph_upload 1 0")
			p.wantUsed(60, 100)
			p.do("graph_destroy 1", "graph_trim 0")
			p.wantUsed(0, 100)
			c.wantHeld(0)
		})
	}
}

// TestGraphMemoryThatStays: what a graph leaves allocated is the program's to
// free; a graph that frees it by itself at the next launch needs it only once.
func TestGraphMemoryThatStays(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	p.do("graph_alloc 1 60 0 0", "graph_launch 1 0", "graph_trim 0")
	p.wantUsed(60, 100)
	p.want("alloc 1 41", outOfMemory)
	p.do("graph_free 1", "alloc 1 41", "free 1", fmt.Sprintf("graph_alloc 2 60 0 %d", autoFrees))
	for range 3 {
		p.want("graph_launch 2 0", ok)
		p.wantUsed(60, 100)
	}
	p.want(fmt.Sprintf("graph_alloc 3 60 0 %d", uploads), outOfMemory)
	p.do("graph_free 2", fmt.Sprintf("graph_alloc 3 60 0 %d", uploads))
	p.wantUsed(60, 100)
}

// TestGraphMemoryOfDevices: the node says which device, not the thread.
func TestGraphMemoryOfDevices(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100}, share{0, 50}, share{})
	p := c.start()
	p.want("graph_alloc 1 60 1 0", ok)
	p.want("graph_launch 1 0", outOfMemory)
	p.do("graph_alloc 2 40 1 0", "graph_launch 2 0")
	p.wantUsed(0, 100)
	p.want("graph_alloc 3 1 2 0", notPermitted)
	if c.held(0) != 0 || c.held(1) != 40 || c.held(2) != 0 {
		t.Errorf("the devices hold %d, %d and %d MiB, want 0, 40 and 0", c.held(0), c.held(1), c.held(2))
	}
}
