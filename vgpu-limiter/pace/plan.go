// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"slices"
	"time"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

const (
	// period is the refill period of containers whose launches are short.
	period = 10 * time.Millisecond
	// longestPeriod bounds how long a container may have to wait for its turn
	// because a neighbour's launches are long.
	longestPeriod = 500 * time.Millisecond
	// slack is the percent of the device that is left free between turns: what runs
	// over a turn of time that was given is in nobody's way.
	slack = 5
	// late is how late a container may begin with its turn.
	late = 300 * time.Microsecond
	// recent is for how long after a launch a container counts as working: nobody
	// else has its time. It keeps its turn for longer, since that costs nobody
	// anything, and other turns would move all of them.
	recent = 50 * time.Millisecond
	stays  = time.Second
	// first is for how long a container's first launch waits to be seen, so that it comes in
	// a turn: nobody knows how long it is.
	first = 3 * idleTick
)

// member is one container on one GPU as the plan sees it.
type member struct {
	quota    int // percent; 0: it yields
	mayBurst bool
	most     int           // percent that it may burst to; 0: all
	unknown  bool          // without a quota, and its library can't be held back: it may work
	class    bool          // all that yield on the GPU (yield.go)
	idle     bool          // an idle slice (idle.go)
	shut     bool          // it gets no turn
	slot     slot          // its turn, as it was planned last
	waits    bool          // a launch waits
	charged  time.Duration // device time since it was looked at last
	layout.Activity
}

// rhythm is the length of the turns on a GPU, 0 for none, since when, and when they were
// planned last; and the class that yields.
type rhythm struct {
	length, since, looked time.Duration
	yields                yielding
	// idleUntil is when idle slices are to be looked at again; 0 without any that works.
	idleUntil time.Duration
}

// working: it launches, or what it has launched isn't paid for yet. One that waits
// for its turn launches once in as long as turns take.
func (m member) working(now time.Duration, r rhythm) bool {
	return m.launched(now, max(recent, 2*r.length))
}

// present: it keeps its turn.
func (m member) present(now time.Duration, r rhythm) bool {
	return m.launched(now, max(stays, 4*r.length))
}

func (m member) launched(now, lately time.Duration) bool {
	return m.LastLaunch > now-lately || m.PaidUntil > now || m.waits
}

// plan says what holds for each of the containers of one GPU, and moves their slots on.
// It depends on nothing but what they have done, and what turns have been before.
func plan(now time.Duration, before rhythm, members []member) ([]layout.Turn, rhythm) {
	turns := make([]layout.Turn, len(members))
	var paced, present, yield []int // paced: working within a quota; yield: without one
	working, quotas, unknown, idles := 0, 0, false, []int(nil)
	for i, m := range members {
		turns[i] = layout.Turn{Core: uint32(m.quota), Period: period, Part: layout.WholePeriod}
		unknown = unknown || m.unknown
		switch works := m.working(now, before); {
		case m.shut:
			turns[i], members[i].slot = layout.Turn{}, slot{last: m.slot.last}
		case m.idle:
			idles = append(idles, i)
			unknown = unknown || works
		case works && m.quota != 0:
			paced, quotas, working = append(paced, i), quotas+m.quota, working+1
		case works && !m.unknown:
			yield, working = append(yield, i), working+1
		}
		if m.quota != 0 && m.present(now, before) {
			present = append(present, i)
		}
	}
	idle := 100 - quotas
	if len(paced) > 1 || len(paced) == 1 && len(yield) > 0 {
		idle -= slack
	}
	others := present
	if giveIdle(members, turns, paced, idle) || len(yield) > 0 { // those that don't work have left their turns to others
		others = paced
	}
	for i, m := range members {
		turns[i].Neighbours = working > 1 || len(others) > 1 || working == 1 && !m.working(now, before) || unknown
		if m.quota == 0 {
			turns[i].Core = 100
		}
		if m.LastLaunch == 0 && len(members) > 1 || m.quota == 0 && len(paced) > 0 {
			turns[i].Part, turns[i].OthersUntil = layout.WholePeriod-1, now+first
		}
	}
	if len(paced) == 0 {
		yield = nil
	}
	for i := range members {
		if !slices.Contains(others, i) && !members[i].idle {
			members[i].slot = slot{held: members[i].slot.held, last: members[i].slot.last, begun: members[i].slot.begun && slices.Contains(yield, i)}
		}
	}
	var r rhythm
	switch {
	case len(yield) > 0:
		r = takeTurnsWithClass(now, before, members, turns, paced, yield)
	case len(others) >= 2:
		r = takeTurns(now, before, members, turns, others)
	}
	r.idleUntil = giveIdleTurn(now, members, turns, idles, len(yield) > 0 || len(others) >= 2)
	return turns, r
}

// giveIdle shares out what the quotas of working containers leave, in
// proportion to the quotas of those that may have it. It returns whether any may.
func giveIdle(members []member, turns []layout.Turn, paced []int, idle int) bool {
	weights := 0
	for _, i := range paced {
		if members[i].mayBurst {
			weights += members[i].quota
		}
	}
	if idle <= 0 || weights == 0 {
		return false
	}
	for _, i := range paced {
		if members[i].mayBurst {
			turns[i].Core += uint32(idle * members[i].quota / weights)
			if most := uint32(members[i].most); most > 0 {
				turns[i].Core = max(uint32(members[i].quota), min(turns[i].Core, most))
			}
		}
	}
	return true
}
