// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"time"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

const (
	// settled is how far back calendars are read: by then a container has noticed
	// and entered what it had on the device, unless its launches are longer.
	settled = 180 * time.Millisecond
	// overlapTick is how often they are read.
	overlapTick = 50 * time.Millisecond
	// memory is how many readings old half of what counts is.
	memory = 4
)

// overlap is what a container has measured on one device of late, and how much of
// it was its own, decaying.
type overlap struct{ measured, own float64 }

// thousandths is the part that was its own.
func (o overlap) thousandths() uint32 {
	if o.measured < float64(time.Millisecond) {
		return 1000
	}
	return uint32(max(1, 1000*o.own/o.measured))
}

// add looks at the intervals from number `from` up to `to` in the calendars of the
// containers of one GPU. Where together they had work for longer than an interval
// is, they took turns in it, and each is taken to have had its part.
func add(overlaps []*overlap, calendars []layout.Calendar, from, to int64) {
	for _, o := range overlaps {
		o.measured -= o.measured / memory / 1.5
		o.own -= o.own / memory / 1.5
	}
	for number := from; number < to; number++ {
		var sum time.Duration
		for _, c := range calendars {
			sum += c.Worked(number)
		}
		part := 1.0
		if sum > layout.CalendarCell {
			part = float64(layout.CalendarCell) / float64(sum)
		}
		for i, c := range calendars {
			worked := float64(c.Worked(number))
			overlaps[i].measured += worked
			overlaps[i].own += worked * part
		}
	}
}
