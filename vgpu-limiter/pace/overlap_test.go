// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"encoding/binary"
	"testing"
	"time"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// calendar enters, as the library does, that all of the intervals from one number
// to another had work for so long each.
func calendar(from, to int64, worked time.Duration) layout.Calendar {
	c := make(layout.Calendar, 4*layout.CalendarCells)
	for n := from; n < to; n++ {
		word := uint32(n/layout.CalendarCells)&0xffff<<16 | uint32(worked/2)
		binary.LittleEndian.PutUint32(c[n%layout.CalendarCells*4:], word)
	}
	return c
}

// TestOverlap: time that only one measures is its own; time that several measure is
// shared out; what is old is forgotten.
func TestOverlap(t *testing.T) {
	const begin = 1 << 40
	const cell = layout.CalendarCell
	for name, test := range map[string]struct {
		a, b       layout.Calendar
		ownA, ownB uint32
	}{
		"side by side":     {a: calendar(begin, begin+100, cell), b: calendar(begin+100, begin+200, cell), ownA: 1000, ownB: 1000},
		"all the time":     {a: calendar(begin, begin+200, cell), b: calendar(begin, begin+200, cell), ownA: 500, ownB: 500},
		"half of it":       {a: calendar(begin, begin+200, cell), b: calendar(begin, begin+100, cell), ownA: 750, ownB: 500},
		"fits an interval": {a: calendar(begin, begin+200, cell/2), b: calendar(begin, begin+200, cell/2), ownA: 1000, ownB: 1000},
		"one is idle":      {a: calendar(begin, begin+200, cell), b: calendar(0, 0, 0), ownA: 1000, ownB: 1000},
		"a round ago": {a: calendar(begin, begin+200, cell), b: calendar(begin-layout.CalendarCells, begin-layout.CalendarCells+200, cell),
			ownA: 1000, ownB: 1000},
	} {
		overlaps := []*overlap{{}, {}}
		add(overlaps, []layout.Calendar{test.a, test.b}, begin, begin+200, 0)
		if a, b := overlaps[0].thousandths(), overlaps[1].thousandths(); a != test.ownA || b != test.ownB {
			t.Errorf("%s: own %d and %d, want %d and %d", name, a, b, test.ownA, test.ownB)
		}
	}
	overlaps := []*overlap{{}, {}}
	union := add(overlaps, []layout.Calendar{calendar(begin, begin+200, cell), calendar(begin, begin+200, cell)}, begin, begin+200, 0)
	alone := []layout.Calendar{calendar(begin, begin+4000, cell), calendar(0, 0, 0)}
	for i := range int64(20) {
		union = add(overlaps, alone, begin+200*i, begin+200*(i+1), union)
	}
	if own := overlaps[0].thousandths(); own < 990 {
		t.Errorf("own %d long after the neighbour stopped, want 1000", own)
	}
}

// TestOverlapByCost: of time in which both had work, each had what its launches are
// known to take.
func TestOverlapByCost(t *testing.T) {
	const begin = 1 << 40
	both := calendar(begin, begin+200, layout.CalendarCell)
	overlaps := []*overlap{{least: 3e6}, {least: 1e6}}
	add(overlaps, []layout.Calendar{both, both}, begin, begin+200, 0)
	if a, b := overlaps[0].own, overlaps[1].own; a < 749 || a > 750 || b < 249 || b > 250 {
		t.Errorf("own %d and %d, want 750 and 250", a, b)
	}
}
