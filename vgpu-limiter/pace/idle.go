// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"cmp"
	"slices"
	"time"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Idle slices launch while nobody else wants the device: none of the containers with a quota, nor
// those that yield to these. One of them at a time has the turn, which ends when somebody is known to
// come back: when the quota of a launch that waits is refilled, or a turn begins. Nobody else's
// turns depend on them. What they have launched is all that is in the way of the first that comes:
// a millisecond, or one launch. Without this package they launch nothing.

const (
	// idleLook is how often it is looked whether anybody else wants the device.
	idleLook = 500 * time.Microsecond
	// idleHold is for how long one has the turn while others wait for it.
	idleHold = 10 * time.Millisecond
	// mostInFlight bounds for how long others wait until what an idle slice has launched is through.
	mostInFlight = time.Millisecond
	// stillWorks is for how long after its work a container may be about to launch more.
	stillWorks = 300 * time.Microsecond
	// idleValid is for how long a turn holds that nobody is known to end.
	idleValid = 3 * idleTick
)

// returns is when a container without an idle slice wants the device, at the earliest: now, or when
// what it waits for comes. It is false where nothing says so.
func (m member) returns(now time.Duration, inTurns bool) (at time.Duration, known bool) {
	waits := m.waits && m.WaitingSince != 0
	// As the library reckons: a launch starts once half of it is paid off at the next refill.
	refill := (m.PaidUntil + min(m.Usual*100/time.Duration(max(m.quota, 1)), period)/2).Truncate(period)
	spent := waits && (m.PaidUntil > now || refill > now)
	switch {
	case inTurns && !m.slot.begun && (m.waits || m.WaitingSince != 0): // of one that was killed, too
		return max(now, m.slot.begin), true
	case spent && inTurns:
		return max(now, min(m.PaidUntil, m.slot.begin+m.slot.length)), true
	case spent: // refilled once a period
		return max(now.Truncate(period)+period, refill), true
	case max(m.LastLaunch, m.WorkingUntil)+stillWorks > now || waits:
		return now, true
	}
	return 0, false
}

// giveIdleTurn gives one of the idle slices the device, if nobody else wants it, and returns when to
// look again; 0 where none of them works. slot.end is until when its turn is good.
func giveIdleTurn(now time.Duration, members []member, turns []layout.Turn, idles []int, inTurns bool) time.Duration {
	until, through := now+idleValid, now
	again := now + idleLook
	for _, m := range members {
		if m.idle {
			continue
		}
		if at, known := m.returns(now, inTurns); known {
			until = min(until, at)
		}
		through = max(through, min(m.WorkingUntil, now+period))
		if m.WorkingUntil+stillWorks > now {
			again = min(again, m.WorkingUntil+stillWorks)
		}
	}
	works, inFlight := false, now
	for _, i := range idles {
		works = works || members[i].working(now, rhythm{})
		inFlight = max(inFlight, min(members[i].WorkingUntil, now+mostInFlight))
	}
	for i, m := range members {
		// One that comes at a known moment begins after that: what it measures is its own.
		at, known := m.returns(now, inTurns)
		if t := &turns[i]; !m.idle && known && at > now && inFlight > now {
			t.Part, t.OthersUntil = min(t.Part, layout.WholePeriod-1), max(t.OthersUntil, inFlight)
		}
	}
	holder := idleHolder(now, members, idles)
	for _, i := range idles {
		s := &members[i].slot
		if i != holder || until <= now {
			through = max(through, min(members[i].WorkingUntil, now+period))
			*s = slot{last: max(s.last, s.begin), begin: s.begin, begun: i == holder && s.begun}
			turns[i] = layout.Turn{}
		}
	}
	if holder >= 0 && until > now {
		s := &members[holder].slot
		if !s.begun {
			s.begun, s.begin = true, now
		}
		s.last, s.end = now, until
		turns[holder] = idleTurn(now, until, through)
	}
	if !works || len(members) == len(idles) && len(idles) == 1 {
		return 0
	}
	if until > now {
		again = min(again, until)
	}
	return again
}

// idleHolder is which idle slice has the turn, -1 without one: the one that has it, for idleHold or
// while no other waits, or the one that waits and had it longest ago.
func idleHolder(now time.Duration, members []member, idles []int) int {
	if len(idles) == 0 {
		return -1
	}
	waits := func(i int) bool { return members[i].waits || members[i].WorkingUntil > now }
	has := slices.IndexFunc(idles, func(i int) bool { return members[i].slot.begun })
	if has >= 0 && waits(idles[has]) && now < members[idles[has]].slot.begin+idleHold {
		return idles[has]
	}
	next := slices.MinFunc(idles, func(a, b int) int {
		if waits(a) != waits(b) {
			return map[bool]int{true: -1, false: 1}[waits(a)]
		}
		return cmp.Compare(members[a].slot.last, members[b].slot.last)
	})
	if has >= 0 {
		members[idles[has]].slot.begun = idles[has] == next
	}
	if members[next].slot.begun {
		members[next].slot.begin = now
	}
	return next
}

// idleTurn is a turn from now until then, in which nothing is launched before others are through.
func idleTurn(now, until, through time.Duration) layout.Turn {
	length := max(4*(until-now), 4*time.Millisecond).Truncate(time.Microsecond)
	begin := now.Truncate(time.Microsecond)
	if known := until < now+idleValid; !known {
		return layout.Turn{Core: 100, Neighbours: true, Period: period, Part: layout.WholePeriod, OthersUntil: through}
	}
	return layout.Turn{
		Core: 100, Neighbours: true, Period: length, Phase: begin % length,
		Part: uint32(max(1, int64(until-begin)*layout.WholePeriod/int64(length))), OthersUntil: through,
	}
}
