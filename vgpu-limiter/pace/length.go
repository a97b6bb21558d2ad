// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"math"
	"time"
)

// sharer is a container that works beside others: its percent of the device and
// about its longest launch.
type sharer struct {
	core           uint32
	longest, usual time.Duration
}

// free is which part of each period no sharer's share takes, for each of them.
func free(sharers []sharer) float64 {
	left := 100
	for _, s := range sharers {
		left -= int(s.core)
	}
	return max(0, float64(left)/100/float64(len(sharers)))
}

const (
	alike   = 0.3                    // percent of the device
	unlike  = 2 * alike              // before turns that launches don't fill any more get another length
	fits    = 1.0                    // of turns that launches fill
	lates   = 4.0                    // of turns that lose no more by beginning late
	tight   = 0.02                   // of a period: less is nothing left over
	shortly = 100 * time.Millisecond // before another length is looked for
	dwells  = 2 * time.Second        // before one that is only longer than needed is left
)

// next is what follows `before`: a length that is good enough stays.
func next(now time.Duration, before rhythm, sharers []sharer) rhythm {
	best, fit := turnLength(sharers)
	unfilled, _ := lost(sharers, before.length)
	bad := before.length < best || fit && unfilled > fits+unlike
	if before.length != 0 && (now < before.since+shortly || !bad && (best > before.length/2 || now < before.since+dwells)) {
		return before
	}
	return rhythm{length: best, since: now}
}

// turnLength is the length of the periods in which these sharers take turns, and whether
// their launches fill turns of it: then each second is like the others. Where there is
// none that they fill, it is long enough for a launch of each. All lengths divide a
// second, so that as many turns lie in any second.
func turnLength(sharers []sharer) (time.Duration, bool) {
	shortest := period * time.Duration(len(sharers))
	best, least := longestPeriod, math.Inf(1)
	for parts := time.Second / longestPeriod; parts <= time.Second/shortest; parts++ { // longest first
		length := (time.Second / parts).Truncate(time.Microsecond)
		unfilled, late := lost(sharers, length)
		if cost := unfilled + late + 20*length.Seconds(); cost <= least+alike {
			best, least = length, min(least, cost)
		}
	}
	if unfilled, late := lost(sharers, best); unfilled <= fits && late <= lates {
		return best, true
	}
	if free(sharers) < tight {
		shortest *= 3
	}
	launches := time.Duration(0)
	for _, s := range sharers {
		launches += min(max(s.longest, 2*s.longest-s.usual), longestPeriod)
	}
	parts := max(time.Second/longestPeriod, time.Second/max(shortest, launches*11/10))
	return (time.Second / parts).Truncate(time.Microsecond), false
}

// lost is how many percent of the device a sharer loses at most in some second, with
// turns of this length, since its launches don't fill its turn or since it has to let a
// turn go by now and then; and what all lose since turns begin late and launches differ.
func lost(sharers []sharer, length time.Duration) (unfilled, lost float64) {
	short, begins, differ := true, 0.0, 0.0
	for _, s := range sharers {
		if s.longest <= 0 {
			continue
		}
		share := float64(s.core) / 100
		part := (share + free(sharers)) * float64(length)
		wanted := share * float64(length) / float64(s.longest)
		fit := max(1, math.Floor((part-float64(late))/float64(s.longest)+0.5))
		unfilled = max(unfilled, 100*share*(1-fit/wanted))
		if fit >= wanted {
			unfilled = max(unfilled, 50*min(1, 10*(math.Ceil(wanted)-wanted))*s.longest.Seconds())
		}
		short = short && 8*s.longest <= period
		begins += float64(late)
		differ += max(0, float64(s.longest-s.usual)/2)
	}
	if short { // what is nobody's makes up for turns that begin late
		begins = max(0, begins-free(sharers)*float64(len(sharers))*float64(length))
	}
	return unfilled, 100 * (begins + differ) / float64(length)
}
