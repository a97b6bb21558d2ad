// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"time"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// What a container measures while others work on the device as well holds some of
// their work, and no container can tell how much. But the device has worked no longer
// than the clock has run: where containers together were charged for more of an
// interval than it is long, the rest is returned to them, in proportion.

const (
	settles = 50 * time.Millisecond // from one look to the next
	worksOn = 2 * time.Second       // after its last launch
)

// overlap is a container's calendar of one device, and what of it was returned.
type overlap struct {
	calendar, returned layout.Calendar
}

// settle says what more is to be returned to each of those that share a device.
// A launch is entered when it is through: any interval may still change.
func settle(now time.Duration, sharers []*overlap) []time.Duration {
	more := make([]time.Duration, len(sharers))
	last := uint64(now / layout.CalendarCell)
	for number := last - layout.CalendarCells + 2; number <= last; number++ {
		var sum time.Duration
		for _, o := range sharers {
			sum += o.calendar.Charged(number)
		}
		if sum <= layout.CalendarCell {
			continue
		}
		for i, o := range sharers {
			due := o.calendar.Charged(number) * (sum - layout.CalendarCell) / sum / 2 * 2
			if was := o.returned.Charged(number); due > was {
				more[i] += due - was
				o.returned.Charge(number, due)
			}
		}
	}
	return more
}

// settleUp returns what those who have worked on a device of late have been charged
// too much.
func settleUp(now time.Duration, there []place) {
	var worked []place
	for _, p := range there {
		if p.container.activity[p.device].LastLaunch > now-worksOn {
			worked = append(worked, p)
		}
	}
	if len(worked) < 2 {
		return
	}
	sharers := make([]*overlap, len(worked))
	for i, p := range worked {
		sharers[i] = &p.state().overlap
		if err := layout.ReadCalendar(p.container.counters, p.device, &sharers[i].calendar); err != nil {
			clear(sharers[i].calendar[:]) // it has done nothing
		}
	}
	for i, more := range settle(now, sharers) {
		if more > 0 {
			worked[i].container.pace.Return(worked[i].device, more)
		}
	}
}
