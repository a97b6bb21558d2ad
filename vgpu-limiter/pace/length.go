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

// A length that loses little more than the best stays, and so does any for a while:
// another one moves all turns, and what is measured meanwhile holds others' work.
const (
	alike   = 0.3 // percent of the device
	worse   = 1.0
	shortly = 100 * time.Millisecond
	dwells  = 2 * time.Second // before one that is only longer than needed is left
)

// next is what follows `before`.
func next(now time.Duration, before rhythm, sharers []sharer) rhythm {
	best := turnLength(sharers)
	bad := before.length < shortest(sharers) || cost(sharers, before.length) > cost(sharers, best)+worse
	if before.length != 0 && (!bad || now < before.since+shortly) && (best >= before.length/2 || now < before.since+dwells) {
		return before
	}
	return rhythm{best, now}
}

func shortest(sharers []sharer) time.Duration { return period * time.Duration(len(sharers)) }

// turnLength is the length of the periods in which these sharers best take turns.
// Each divides a second, so that as many turns of each lie in any second: the one
// that costs least; of those that cost about as little, the shortest.
func turnLength(sharers []sharer) time.Duration {
	best, least := longestPeriod, cost(sharers, longestPeriod)
	for parts := time.Second/longestPeriod + 1; parts <= time.Second/shortest(sharers); parts++ { // longest first
		length := (time.Second / parts).Truncate(time.Microsecond)
		if loses := cost(sharers, length); loses <= least+alike {
			best, least = length, min(least, loses)
		}
	}
	return best
}

// cost is what decides between lengths: what is lost, and how long everybody waits
// for his turn: a tenth of a second is worth 2 percent of the device.
func cost(sharers []sharer, length time.Duration) float64 {
	return lost(sharers, length) + 20*length.Seconds()
}

// lost is how many percent of the device a sharer loses in some second, at most, with
// turns of this length: since its launches don't fill its turn, since it has to let
// a turn go by now and then, and since others' launches run over into its turn.
func lost(sharers []sharer, length time.Duration) float64 {
	most, over := 0.0, 0.0
	for _, s := range sharers {
		if s.longest <= 0 {
			continue
		}
		share := float64(s.core) / 100
		part := (share + free(sharers)) * float64(length)
		wanted := share * float64(length) / float64(s.longest)
		fit := max(1, math.Floor((part-float64(late))/float64(s.longest)+0.5))
		most = max(most, 100*share*(1-fit/wanted))
		if fit >= wanted {
			most = max(most, 50*min(1, 10*(math.Ceil(wanted)-wanted))*s.longest.Seconds())
		}
		used := min(fit, math.Ceil(wanted))*float64(s.longest) + float64(late)
		over += max(0, used-part) + max(0, float64(s.longest-s.usual)/2)
	}
	return most + 100*over/float64(length)
}
