// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"testing"
)

// TestSparseArrays: memory that was mapped under a sparse array stays charged until the
// array goes, alone or with its context, and as long as a handle refers to it. What is
// unmapped, mapped over, or still to be unmapped by a stream is never charged less than the
// device holds.
func TestSparseArrays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		line            string
		used, held, end int // MiB after it, and once the second handle is released as well
	}{
		"unmapped":          {"unmap_tiles 1 0 8", 14, 4, 10},
		"mapped over":       {"map_tiles 1 2 0 8", 14, 4, 14},
		"array destroyed":   {"destroy_array 1", 4, 4, 0},
		"context destroyed": {"destroy_context 1", 4, 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, share{0, 20})
			p := c.start()
			p.do("context 1 0", "current 1", "sparse 1 8 4", "tiles 1 10", "tiles 2 4")
			p.want("tiles 3 8", outOfMemory)
			p.want("map_tiles 1 1 0 8", ok)
			p.want("map_tiles 1 1 0 8", ok) // it counts once
			p.want("release 1", ok)
			p.wantUsed(14, 20)
			p.want("unmap_tiles 1 1 7", ok) // the first column stays
			p.wantUsed(14, 20)
			p.want("unmap_tiles 1 3 2", ok) // nothing is there
			p.want("unmap_tiles 1 7 2", invalidValue)
			p.want("map_tiles 1 2 7 2", invalidValue)
			p.want("tiles 3 8", outOfMemory)
			c.wantHeld(14)
			p.do(test.line, "current 0")
			p.wantUsed(test.used, 20)
			c.wantHeld(test.held)
			p.want("release 2", ok)
			p.wantUsed(test.end, 20)
			p.want(fmt.Sprintf("alloc 4 %d", 20-test.end), ok)
			p.want("alloc 5 1", outOfMemory)
			p.want("free 4", ok)
			if test.end != 0 {
				p.want("destroy_array 1", ok)
			}
			p.wantUsed(0, 20)
			c.wantHeld(0)
		})
	}
}

// TestSparseTail: the mip tail and deferred arrays are charged as sparse arrays are.
func TestSparseTail(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 20})
	p := c.start()
	p.do("sparse 1 8 4 9", "tiles 1 4", "tiles 2 6", "map_tiles 1 1 0 8", "map_tail 1 2", "release 1",
		"release 2", "unmap_tiles 1 0 8")
	p.wantUsed(10, 20)
	c.wantHeld(6)
	p.want("destroy_mipmap 1", ok)
	p.wantUsed(0, 20)
	p.want("array 2 64 64 4 128", ok) // deferred
	p.do("tiles 1 4", "map_tiles 2 1 0 1", "release 1")
	p.wantUsed(4, 20)
	p.do("tiles 2 6", "map_tiles 2 2 0 1", "release 2")
	p.wantUsed(10, 20)
	p.want("destroy_array 2", ok)
	p.wantUsed(0, 20)
	c.wantHeld(0)
}

// TestUnmappingInTurn: what a stream has yet to unmap is charged, and nobody waits for it.
func TestUnmappingInTurn(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 20})
	p := c.start()
	p.do("stream 1", "sparse 1 8 4", "tiles 1 12", "map_tiles 1 1 0 8 1", "release 1")
	p.want("launch 1 3600000000 1", ok) // an hour
	p.want("unmap_tiles 1 0 8 1", ok)
	p.wantUsed(12, 20)
	p.want("alloc 2 12", outOfMemory)
	p.do("destroy_array 1", "alloc 2 12")
}
