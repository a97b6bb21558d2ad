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
)

// overlap is what a container has measured on one device of late, decaying.
type overlap struct {
	measured float64       // time in which it had work there
	alone    float64       // of which nobody else had
	least    float64       // what that work takes undisturbed, as its limiter knows
	seen     time.Duration // Activity.Least up to which that has been added
	own      uint32        // thousandths of measured that were its own; 0 for not known
}

// thousandths is the part that was its own.
func (o overlap) thousandths() uint32 {
	if o.own == 0 {
		return 1000
	}
	return o.own
}

// add looks at the intervals from number `from` up to `to` in the calendars of the
// containers of one GPU, and works out how much of what each has measured was its
// own. The device works for one at a time, so together they had the time in which
// any had work: each that in which it was alone, and of the rest a part by what its
// launches are known to take undisturbed.
//
// union is the time in which any of them had work, up to now and then.
func add(overlaps []*overlap, calendars []layout.Calendar, from, to int64, union float64) float64 {
	const keep = 1 - 1.0/6
	union *= keep
	for _, o := range overlaps {
		o.measured *= keep
		o.alone *= keep
		o.least *= keep
	}
	for number := from; number < to; number++ {
		var sum time.Duration
		for _, c := range calendars {
			sum += c.Worked(number)
		}
		twice := max(0, sum-layout.CalendarCell) // in which more than one had work
		union += float64(sum - twice)
		for i, c := range calendars {
			worked := c.Worked(number)
			overlaps[i].measured += float64(worked)
			overlaps[i].alone += float64(max(0, worked-twice))
		}
	}
	divide(overlaps, union)
	return union
}

// divide works out everybody's own part of `union`, the time in which any of them
// had work.
func divide(overlaps []*overlap, union float64) {
	var least, rest, weights float64
	for _, o := range overlaps {
		least += o.least
		rest += o.alone
	}
	rest = max(0, union-rest)
	weight := func(o *overlap) float64 {
		w := o.measured - o.alone
		if least > 0 {
			w = min(w, max(0, o.least*union/least-o.alone))
		}
		return w
	}
	for _, o := range overlaps {
		weights += weight(o)
	}
	for _, o := range overlaps {
		o.own = 1000
		if o.measured > float64(time.Millisecond) && weights > 0 {
			own := o.alone + rest*weight(o)/weights
			o.own = uint32(min(1000, max(1, 1000*own/o.measured)))
		}
	}
}
