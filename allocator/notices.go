// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"time"
)

const (
	// toldAgain is how long new figures for a reason, or a reason that has come back,
	// wait for at least before they are worth another event. It doubles with each,
	// up to toldRarely: a reason that flaps says less and less.
	toldAgain  = time.Minute
	toldRarely = time.Hour
	// newsFreely is how many reasons of a waiting pod are told as soon as they are
	// there. More of them come a minute apart.
	newsFreely = 4
	// maxCauses bounds what is remembered of a pod; the oldest is forgotten first.
	maxCauses = 16
)

// notices are the events that a waiting pod had about why it waits, by cause: the
// reason without its figures. A pod gets one event for a reason that stays, however
// often it is looked at.
type notices struct {
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

// due is when the text may be told; never where it is what was told last.
func (n *notices) due(cause, text string) (at time.Time, news bool) {
	before, known := n.by[cause]
	switch {
	case !known && len(n.by) < newsFreely:
		return time.Time{}, true
	case !known:
		return n.at.Add(toldAgain), true
	case n.last == cause && before.text == text:
		return time.Time{}, false
	}
	return before.at.Add(before.pause), true
}

// enter notes an event.
func (n *notices) enter(cause, text string, now time.Time) {
	pause := toldAgain
	if before, known := n.by[cause]; known {
		pause = min(2*before.pause, toldRarely)
	}
	if n.by == nil {
		n.by = map[string]notice{}
	}
	n.by[cause] = notice{text: text, at: now, pause: pause}
	n.last, n.at = cause, now
	for len(n.by) > maxCauses {
		oldest := cause
		for other := range n.by {
			if cmp.Or(n.by[other].at.Compare(n.by[oldest].at), cmp.Compare(other, oldest)) < 0 {
				oldest = other
			}
		}
		delete(n.by, oldest)
	}
}
