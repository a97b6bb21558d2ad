// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// TestSettle: whatever containers are charged for an interval, when, and how often is
// looked, what stays charged is the interval at most, if it was exceeded nearly all of
// it, and nobody gets back more than he was charged. Longer than a calendar, so that its
// cells serve again.
func TestSettle(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	const cell = layout.CalendarCell
	for range 20 {
		sharers := []*overlap{{}, {}, {}}[:1+random.IntN(3)]
		returned := make([]time.Duration, len(sharers))
		first := uint64(now / cell)
		charged := map[uint64][]time.Duration{}
		for step := range 40 {
			last := first + uint64(step*700)
			for range 1000 {
				number := last - random.Uint64N(2000)
				if charged[number] == nil {
					charged[number] = make([]time.Duration, len(sharers))
				}
				i := random.IntN(len(sharers))
				had := &charged[number][i]
				*had += time.Duration(random.Int64N(int64(cell-*had)+1)) / 2 * 2
				sharers[i].calendar.Charge(number, *had)
			}
			for i, more := range settle(time.Duration(last)*cell, sharers) {
				returned[i] += more
			}
		}
		var over, back time.Duration
		for i := range sharers {
			var all time.Duration
			for _, had := range charged {
				all += had[i]
			}
			if back += returned[i]; returned[i] > all {
				t.Fatalf("%v of %v returned", returned[i], all)
			}
		}
		for _, had := range charged {
			var sum time.Duration
			for _, ns := range had {
				sum += ns
			}
			over += max(0, sum-cell)
		}
		if back > over || back < over-time.Duration(len(charged)*len(sharers)*2) {
			t.Fatalf("%d containers: %v returned of %v too much", len(sharers), back, over)
		}
	}
}

// TestSettleTakesNothingBack: a container that says less than before takes nothing from what
// its neighbour is returned.
func TestSettleTakesNothingBack(t *testing.T) {
	number, sharers := uint64(now/layout.CalendarCell), []*overlap{{}, {}}
	charge := func(number uint64, first, second time.Duration) {
		sharers[0].calendar.Charge(number, first)
		sharers[1].calendar.Charge(number, second)
	}
	charge(number, layout.CalendarCell, layout.CalendarCell)
	settle(now, sharers)
	charge(number, layout.CalendarCell/4*3, layout.CalendarCell)
	charge(number-1, layout.CalendarCell, layout.CalendarCell)
	if more := settle(now, sharers); more[1] != layout.CalendarCell/2 {
		t.Errorf("%v more, want %v", more[1], layout.CalendarCell/2)
	}
}

// BenchmarkSettle is what it costs the node to look once at a device on which so many
// containers work.
func BenchmarkSettle(b *testing.B) {
	for _, n := range []int{2, 10} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var sharers []*overlap
			for i := range n {
				o := &overlap{}
				for number := range uint64(layout.CalendarCells) {
					if int(number/100)%n == i {
						o.calendar.Charge(uint64(now/layout.CalendarCell)-number, layout.CalendarCell)
					}
				}
				sharers = append(sharers, o)
			}
			for b.Loop() {
				settle(now, sharers)
			}
		})
	}
}
