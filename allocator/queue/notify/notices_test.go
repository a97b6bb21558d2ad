// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"fmt"
	"testing"
	"time"
)

// Reasons that take turns are each told at once and then less and less, and the one
// that stays is the last that was told.
func TestFlappingReasonsMakeNoStorm(t *testing.T) {
	start := time.Unix(0, 0)
	var n Notices
	told, last := 0, ""
	tell := func(cause string, now time.Time) {
		if at, news := n.due(cause, "text of "+cause); news && !now.Before(at) {
			n.enter(cause, "text of "+cause, now)
			told, last = told+1, cause
		}
	}
	for second := range 24 * 3600 {
		tell(string('a'+byte(second%2)), start.Add(time.Duration(second)*time.Second))
	}
	if told < 10 || told > 70 {
		t.Errorf("two reasons that take turns each second: %d events within a day", told)
	}
	for hour := range 3 {
		tell("a", start.Add(time.Duration(24+hour)*time.Hour))
	}
	if last != "a" {
		t.Errorf("what stays is a, and what was told last is %s", last)
	}
	n, told = Notices{}, 0
	for second := range 3600 {
		tell(fmt.Sprint(second), start.Add(time.Duration(second)*time.Second))
	}
	if told > NewsFreely+60 || len(n.by) > MaxCauses {
		t.Errorf("another reason each second: %d events within an hour, %d remembered", told, len(n.by))
	}
}
