// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"fmt"
	"testing"
	"time"
)

// Reasons that take turns are each sent at once and then less and less, and the one
// that stays is the last that was sent.
func TestFlappingReasonsMakeNoStorm(t *testing.T) {
	start := time.Unix(0, 0)
	var n Notices
	sent, last := 0, ""
	tell := func(cause string, now time.Time) {
		if at, news := n.due(cause, "text of "+cause); news && !now.Before(at) {
			n.enter(cause, "text of "+cause, now)
			sent, last = sent+1, cause
		}
	}
	for second := range 24 * 3600 {
		tell(string('a'+byte(second%2)), start.Add(time.Duration(second)*time.Second))
	}
	if sent < 10 || sent > 70 {
		t.Errorf("two reasons that take turns each second: %d events within a day", sent)
	}
	for hour := range 3 {
		tell("a", start.Add(time.Duration(24+hour)*time.Hour))
	}
	if last != "a" {
		t.Errorf("what stays is a, and what was sent last is %s", last)
	}
	n, sent = Notices{}, 0
	for second := range 3600 {
		tell(fmt.Sprint(second), start.Add(time.Duration(second)*time.Second))
	}
	if sent > NewsFreely+60 || len(n.by) > MaxCauses {
		t.Errorf("another reason each second: %d events within an hour, %d remembered", sent, len(n.by))
	}
}

// Figures that change with every look make few events, fewer and fewer: a day of them makes about
// as many as there are doublings of a minute, and then one an hour. A text that stays makes one.
func TestNotices_WhenFiguresChange(t *testing.T) {
	for figures, want := range map[int][2]int{1: {1, 1}, 2: {10, 35}} {
		var n Notices
		sent := 0
		for minute := range 24 * 60 {
			text, now := fmt.Sprint("needs ", minute%figures), time.Unix(int64(minute)*60, 0)
			if at, news := n.due("short", text); news && !now.Before(at) {
				n.enter("short", text, now)
				sent++
			}
		}
		if sent < want[0] || sent > want[1] {
			t.Errorf("%d figures: %d events within a day, want %v", figures, sent, want)
		}
	}
}
