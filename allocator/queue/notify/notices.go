// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"cmp"
	"time"
)

const (
	// RepeatAfter is how long new figures for a reason, or a reason that has come back,
	// wait at least before another event is sent. It doubles with each,
	// up to RepeatRarely: a reason that flaps says less and less.
	RepeatAfter  = time.Minute
	RepeatRarely = time.Hour
	// NewsFreely is how many reasons of a waiting pod are sent as soon as they are
	// there. More of them come a minute apart.
	NewsFreely = 4
	// MaxCauses bounds what is remembered of a pod; the oldest is forgotten first.
	MaxCauses = 16
)

// Notices are the events that a waiting pod had about why it waits, by cause: the
// reason without its figures. A pod gets one event for a reason that stays, however
// often it is looked at.
type Notices struct {
	by map[string]notice
	// last is the cause of the latest event, at is when it was.
	last string
	at   time.Time
}

// notice is the latest event about a cause.
type notice struct {
	text string
	at   time.Time
	// pause is until another one may follow.
	pause time.Duration
}

// due is when the text may be sent; never where it is what was sent last.
func (n *Notices) due(cause, text string) (at time.Time, news bool) {
	before, known := n.by[cause]
	switch {
	case !known && len(n.by) < NewsFreely:
		return time.Time{}, true
	case !known:
		return n.at.Add(RepeatAfter), true
	case n.last == cause && before.text == text:
		return time.Time{}, false
	}
	return before.at.Add(before.pause), true
}

// enter notes an event.
func (n *Notices) enter(cause, text string, now time.Time) {
	pause := RepeatAfter
	if before, known := n.by[cause]; known {
		pause = min(2*before.pause, RepeatRarely)
	}
	if n.by == nil {
		n.by = map[string]notice{}
	}
	n.by[cause] = notice{text: text, at: now, pause: pause}
	n.last, n.at = cause, now
	for len(n.by) > MaxCauses {
		oldest := cause
		for other := range n.by {
			if cmp.Or(n.by[other].at.Compare(n.by[oldest].at), cmp.Compare(other, oldest)) < 0 {
				oldest = other
			}
		}
		delete(n.by, oldest)
	}
}

// Sent reports whether there was an event.
func (n *Notices) Sent() bool { return len(n.by) > 0 }

// LastIs reports whether the latest event was about the cause.
func (n *Notices) LastIs(cause string) bool { return n.last == cause }
