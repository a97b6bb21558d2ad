// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"testing"
)

// TestSparseArrays: memory under a sparse array stays charged as long as a handle or
// a tile refers to it, and is uncharged with the last of them: when that is unmapped,
// when other memory takes its place, when the array goes, or its context.
func TestSparseArrays(t *testing.T) {
	t.Parallel()
	for name, last := range map[string]string{
		"unmapped":          "unmap_tiles 1 0 8",
		"mapped over":       "map_tiles 1 2 0 8",
		"array destroyed":   "destroy_array 1",
		"context destroyed": "destroy_context 1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, share{0, 20})
			p := c.start()
			p.want("context 1 0", ok)
			p.want("current 1", ok)
			p.want("sparse 1 8 4", ok)
			p.want("tiles 1 10", ok)
			p.want("tiles 2 4", ok)
			p.want("tiles 3 8", outOfMemory)
			p.want("map_tiles 1 1 0 8", ok)
			p.want("release 1", ok)
			p.wantUsed(14, 20)
			p.want("unmap_tiles 1 1 7", ok) // the first column stays
			p.wantUsed(14, 20)
			p.want("unmap_tiles 1 3 2", ok) // nothing is there
			p.want("unmap_tiles 1 7 2", invalidValue)
			p.want("map_tiles 1 2 7 2", invalidValue)
			p.want("tiles 3 8", outOfMemory)
			if held := c.held(0); held != 14 {
				t.Errorf("the device holds %d MiB, want 14", held)
			}
			p.want(last, ok)
			p.want("current 0", ok)
			p.wantUsed(4, 20)
			if held := c.held(0); held != 4 {
				t.Errorf("the device holds %d MiB, want 4", held)
			}
			p.want("release 2", ok)
			left := 0
			if name == "mapped over" {
				left = 4
			}
			p.wantUsed(left, 20)
			p.want(fmt.Sprintf("alloc 4 %d", 20-left), ok)
			if held := c.held(0); held != 20 {
				t.Errorf("the device holds %d MiB, want 20", held)
			}
		})
	}
}

// TestSparseTail: the mip tail and deferred arrays are parts by themselves.
func TestSparseTail(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 20})
	p := c.start()
	p.want("sparse 1 8 4 9", ok)
	p.want("tiles 1 4", ok)
	p.want("tiles 2 6", ok)
	p.want("map_tiles 1 1 0 8", ok)
	p.want("map_tail 1 2", ok)
	p.want("release 1", ok)
	p.want("release 2", ok)
	p.wantUsed(10, 20)
	p.want("unmap_tiles 1 0 8", ok)
	p.wantUsed(6, 20)
	p.want("unmap_tail 1", ok)
	p.wantUsed(0, 20)
	p.want("tiles 1 4", ok)
	p.want("map_tail 1 1", ok)
	p.want("release 1", ok)
	p.want("destroy_mipmap 1", ok)
	p.wantUsed(0, 20)
	p.want("array 2 64 64 4 128", ok) // deferred
	p.want("tiles 1 4", ok)
	p.want("map_tiles 2 1 0 1", ok)
	p.want("release 1", ok)
	p.wantUsed(4, 20)
	p.want("tiles 2 6", ok)
	p.want("map_tiles 2 2 0 1", ok)
	p.wantUsed(6, 20)
	p.want("unmap_tiles 2 0 1", ok)
	p.want("release 2", ok)
	p.wantUsed(0, 20)
	if held := c.held(0); held != 0 {
		t.Errorf("the device holds %d MiB", held)
	}
}

// TestUnmappingInTurn: tiles that a stream has yet to unmap are charged until it has,
// and nobody waits for it but who needs the memory.
func TestUnmappingInTurn(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 20})
	p := c.start()
	p.want("stream 1", ok)
	p.want("sparse 1 8 4", ok)
	p.want("tiles 1 12", ok)
	p.want("map_tiles 1 1 0 8 1", ok)
	p.want("release 1", ok)
	p.want("launch 1 3600000000 1", ok) // an hour
	p.want("unmap_tiles 1 0 8 1", ok)
	p.wantUsed(12, 20)
	p.want("alloc 2 12", outOfMemory)
	p.want("destroy_array 1", ok)
	p.wantUsed(12, 20)
	p.kill()
	p = c.start()
	p.want("stream 1", ok)
	p.want("sparse 1 8 4", ok)
	p.want("tiles 1 12", ok)
	p.want("map_tiles 1 1 0 8 1", ok)
	p.want("release 1", ok)
	p.want("launch 1 1000 1", ok)
	p.want("unmap_tiles 1 0 8 1", ok)
	p.want("synchronize 1", ok)
	p.want("stream 2", ok)
	p.want("begin_capture 2", ok) // in which threads may not ask about events, but for us
	p.want("alloc 2 12", ok)      // whoever is refused looks whether it is through
	p.wantUsed(12, 20)
	p.want("end_capture 2", ok)
}
