// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"time"

	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/api/podrequest"
)

// Progress is how far the search for places for a gang has come.
type Progress struct {
	// Begun is false while it waits to begin, until NotBefore; Running is true while it is under way.
	Begun, Running bool
	NotBefore      time.Time
	// Restarts is how often it began again, Spent what it took since it began last.
	Restarts int
	Spent    time.Duration
}

// Searches are the searches that are not over.
func (sc *Scheduler) Searches() map[podrequest.Group]Progress {
	all := map[podrequest.Group]Progress{}
	for name, s := range sc.searches {
		all[name] = Progress{Begun: s.advance != nil, Running: s == sc.searching, NotBefore: s.notBefore, Restarts: s.restarts, Spent: s.spent}
	}
	return all
}

// Hiding are the reservations that hid room from the pod that was decided on last.
func (sc *Scheduler) Hiding() []*reservation.Reservation { return sc.seen.against }
