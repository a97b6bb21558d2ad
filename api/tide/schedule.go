// SPDX-License-Identifier: Apache-2.0

package tide

import (
	"math/bits"
	"time"

	"github.com/robfig/cron/v3"
)

// schedule finds the times of a parsed schedule. The parser's own search takes the wrong day in zones
// that put their clocks forward at midnight, and none where they shift by half an hour.
type schedule struct{ *cron.SpecSchedule }

// farthest is how far ahead a time is looked for: there is a 29th of February in it.
const farthest = 9 * 366 * 24 * time.Hour

// next is the first time after another, zero where there is none.
func (s schedule) next(after time.Time) time.Time {
	at := after.Truncate(time.Minute).Add(time.Minute).In(s.Location)
	for end := at.Add(farthest); at.Before(end); {
		hour, minute := at.Hour(), at.Minute()
		later := bits.TrailingZeros64(s.Minute >> minute)
		switch {
		case !s.onDay(at) && hour < 20:
			at = at.Add(time.Duration(20-hour) * time.Hour) // no zone leaves out so much of a day
		case !s.onDay(at) || !has(s.Hour, hour) || minute+later > 59: // above is the parser's mark
			at = at.Add(time.Duration(60-minute) * time.Minute)
		case later > 0:
			at = at.Add(time.Duration(later) * time.Minute)
		default:
			return at
		}
	}
	return time.Time{}
}

func (s schedule) onDay(at time.Time) bool {
	day, weekday := has(s.Dom, at.Day()), has(s.Dow, int(at.Weekday()))
	const star = 1 << 63 // as the parser marks it
	if s.Dom&star != 0 || s.Dow&star != 0 {
		return has(s.Month, int(at.Month())) && day && weekday
	}
	return has(s.Month, int(at.Month())) && (day || weekday)
}

func has(set uint64, n int) bool { return set&(1<<n) != 0 }
