// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"slices"
	"testing"
	"time"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

const now = time.Hour

// launches is a container that launched a moment ago.
func launches(quota int, longest time.Duration) member {
	return member{quota: quota, Activity: layout.Activity{LastLaunch: now - time.Millisecond, Longest: longest}}
}

func idle(quota int) member {
	return member{quota: quota, Activity: layout.Activity{LastLaunch: now - time.Minute, PaidUntil: now - time.Minute}}
}

func bursting(m member) member {
	m.mayBurst = true
	return m
}

func burstingTo(most int, m member) member {
	m.mayBurst, m.most = true, most
	return m
}

func turnsOf(members []member) []layout.Turn {
	turns, _ := plan(now, rhythm{}, members)
	return turns
}

// TestAlone: a container alone has its quota, short periods and exact measurements.
func TestAlone(t *testing.T) {
	for _, members := range [][]member{
		{launches(30, 100*time.Millisecond)}, {launches(30, time.Microsecond), idle(60)}, {idle(30)},
	} {
		got := turnsOf(members)[0]
		if want := (layout.Turn{Core: 30, Period: period, Part: layout.WholePeriod}); got != want {
			t.Errorf("%+v: got %+v, want %+v", members, got, want)
		}
	}
}

// TestFirstLaunch: a container that has never launched and isn't alone on its GPU launches
// once it has been seen to want to, and is told of its turn; nobody else notices.
func TestFirstLaunch(t *testing.T) {
	fresh := member{quota: 60}
	for _, members := range [][]member{{fresh, launches(30, time.Millisecond)}, {fresh, fresh}} {
		for i, turn := range turnsOf(members) {
			if waits := members[i].LastLaunch == 0; (turn.OthersUntil > now+idleTick && turn.Part != layout.WholePeriod) != waits {
				t.Errorf("told %+v", turn)
			}
		}
	}
	if turn := turnsOf([]member{fresh})[0]; turn.Part != layout.WholePeriod || turn.OthersUntil != 0 {
		t.Errorf("alone it is told %+v", turn)
	}
	fresh.LastLaunch = now // as soon as it tries
	turns := turnsOf([]member{launches(30, time.Millisecond), fresh})
	if turns[0].OthersUntil == turns[1].OthersUntil || turns[1].OthersUntil > now+100*time.Millisecond {
		t.Errorf("told %+v", turns)
	}
}

// TestLengths: turns are as short as loses little, and long enough for whole
// launches of everybody; so many of them lie in a second that each second is alike.
func TestLengths(t *testing.T) {
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		sharers []sharer
		want    time.Duration
		loses   float64 // percent, at most; -1: they don't fill it
	}{
		"short":              {[]sharer{{30, 10 * time.Microsecond, 10 * time.Microsecond}, {60, 100 * time.Microsecond, 100 * time.Microsecond}}, 20 * ms, 0.5},
		"nothing known":      {[]sharer{{30, 0, 0}, {60, 0, 0}}, 20 * ms, 0},
		"1 ms":               {[]sharer{{30, ms, ms}, {60, ms, ms}}, 20 * ms, 0.5},
		"three":              {[]sharer{{20, ms, ms}, {30, ms, ms}, {40, ms, ms}}, 0, 1},
		"20 ms and short":    {[]sharer{{30, 20 * ms, 20 * ms}, {60, 100 * time.Microsecond, 100 * time.Microsecond}}, 66666 * time.Microsecond, 0.5},
		"100 ms and 100 ms":  {[]sharer{{30, 100 * ms, 100 * ms}, {60, 100 * ms, 100 * ms}}, 333333 * time.Microsecond, 0.5},
		"5 ms and 5 ms":      {[]sharer{{30, 5 * ms, 5 * ms}, {60, 5 * ms, 5 * ms}}, 0, 0.5},
		"nothing left":       {[]sharer{{30, ms, ms}, {70, ms, ms}}, 0, 1.5},
		"no length is right": {[]sharer{{5, 100 * ms, 100 * ms}, {90, 100 * ms, 100 * ms}}, 250 * ms, -1},
		"of random length":   {[]sharer{{30, 40 * ms, 10 * ms}, {60, ms, ms}}, 83333 * time.Microsecond, -1},
		"many":               {slices.Repeat([]sharer{{2, ms, ms}}, 40), 0, 2},
	} {
		length, fit := turnLength(test.sharers)
		if test.want != 0 && length != test.want || length < period*time.Duration(len(test.sharers)) || length > longestPeriod {
			t.Errorf("%s: turns of %v, want %v", name, length, test.want)
		}
		if l, _ := lost(test.sharers, length); fit != (test.loses >= 0) || fit && l > test.loses {
			t.Errorf("%s: turns of %v lose %.2f percent; launches fill them: %v", name, length, l, fit)
		}
	}
}

// TestTurnsStay: another length would move everybody's turn, so one that is nearly
// as good stays, a worse one for a moment, a needlessly long one for a while.
func TestTurnsStay(t *testing.T) {
	const ms = time.Millisecond
	long, short := []sharer{{30, 20 * ms, 20 * ms}, {60, 0, 0}}, []sharer{{30, ms, ms}, {60, ms, ms}}
	length, _ := turnLength(long)
	brief, _ := turnLength(short)
	for _, test := range []struct {
		before  rhythm
		sharers []sharer
		want    time.Duration
	}{
		{rhythm{}, long, length},
		{rhythm{length: length, since: 0}, []sharer{{30, 20*ms + ms/4, 20*ms + ms/4}, {60, 0, 0}}, length},
		{rhythm{length: 20 * ms, since: now - shortly/2}, long, 20 * ms},
		{rhythm{length: 20 * ms, since: now - shortly}, long, length},
		{rhythm{length: length, since: now - dwells/2}, short, length},
		{rhythm{length: length, since: now - dwells}, short, brief},
	} {
		r := next(now, test.before, test.sharers)
		if r.length != test.want || (r == test.before) != (r.length == test.before.length) {
			t.Errorf("%+v, %+v: %+v, want %v", test.before, test.sharers, r, test.want)
		}
	}
}

// TestPausesKeepTurns: whoever has paused for less than a second still has its turn,
// unless others have been given its time.
func TestPausesKeepTurns(t *testing.T) {
	paused := launches(60, 0)
	paused.LastLaunch = now - stays/2
	for _, test := range []struct {
		members []member
		want    bool
	}{
		{[]member{launches(30, 0), paused}, true},
		{[]member{bursting(launches(30, 0)), paused}, false},
		{[]member{launches(30, 0), idle(60)}, false},
	} {
		for i, turn := range turnsOf(test.members) {
			if (turn.Part != layout.WholePeriod) != test.want {
				t.Errorf("%+v: container %d has turns: %v", test.members, i, !test.want)
			}
		}
	}
}

// TestIdleTime: what working containers' quotas leave goes to those that may
// burst, and what these leave to those without a quota.
func TestIdleTime(t *testing.T) {
	for name, test := range map[string]struct {
		members []member
		want    []uint32
	}{
		"alone":                         {[]member{bursting(launches(30, 0)), idle(60)}, []uint32{100, 60}},
		"guaranteed neighbour launches": {[]member{bursting(launches(30, 0)), launches(60, 0)}, []uint32{35, 60}},
		"neighbour pays for the past":   {[]member{bursting(launches(30, 0)), {quota: 60, Activity: layout.Activity{PaidUntil: now + 1}}}, []uint32{35, 60}},
		"two of them, by quota":         {[]member{bursting(launches(10, 0)), bursting(launches(30, 0))}, []uint32{23, 71}},
		"idle ones get nothing":         {[]member{bursting(idle(30)), launches(60, 0)}, []uint32{30, 60}},
		"may not":                       {[]member{launches(30, 0), idle(60)}, []uint32{30, 60}},
		"somebody without a quota":      {[]member{bursting(launches(30, 0)), launches(0, 0)}, []uint32{95, 100}},
		"only without a quota":          {[]member{launches(0, 0), launches(0, 0), idle(30)}, []uint32{100, 100, 30}},
		"beside quotas":                 {[]member{launches(30, 0), launches(20, 0), launches(0, 0)}, []uint32{30, 20, 100}},
		"up to its request":             {[]member{burstingTo(50, launches(30, 0)), idle(60)}, []uint32{50, 60}},
		"to less than its quota":        {[]member{burstingTo(20, launches(30, 0)), idle(60)}, []uint32{30, 60}},
		"nothing left":                  {[]member{bursting(launches(50, 0)), launches(60, 0)}, []uint32{50, 60}},
	} {
		for i, turn := range turnsOf(test.members) {
			if turn.Core != test.want[i] {
				t.Errorf("%s: container %d has %d percent, want %d", name, i, turn.Core, test.want[i])
			}
		}
	}
}

// TestNeighbours: measurements of one that works beside anybody, with a quota or
// without, aren't its own time alone.
func TestNeighbours(t *testing.T) {
	for _, test := range []struct {
		members []member
		want    []bool
	}{
		{[]member{launches(30, 0), idle(60)}, []bool{false, true}},
		{[]member{launches(30, 0), launches(60, 0), idle(1)}, []bool{true, true, true}},
		{[]member{launches(30, 0), launches(0, 0)}, []bool{true, true}},
		{[]member{launches(30, 0), idle(0)}, []bool{false, true}},
		{[]member{launches(30, 0), {unknown: true}}, []bool{true, true}},
	} {
		for i, turn := range turnsOf(test.members) {
			if turn.Neighbours != test.want[i] {
				t.Errorf("%+v: container %d has neighbours: %v, want %v", test.members, i, turn.Neighbours, test.want[i])
			}
		}
	}
}

// TestUnevenLaunches: launches of which some take longer than most run over now and
// then, so turns are longer.
func TestUnevenLaunches(t *testing.T) {
	const ms = time.Millisecond
	even, _ := turnLength([]sharer{{30, 10 * ms, 10 * ms}, {60, ms, ms}})
	uneven, _ := turnLength([]sharer{{30, 10 * ms, 5 * ms}, {60, ms, ms}})
	if uneven < even*5/4 {
		t.Errorf("turns of %v, and of %v where launches differ", even, uneven)
	}
}
