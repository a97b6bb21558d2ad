// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"math/rand/v2"
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
	return member{quota: quota, Activity: layout.Activity{LastLaunch: now - time.Second, PaidUntil: now - time.Second}}
}

func bursting(m member) member {
	m.mayBurst = true
	return m
}

// TestAlone: a container alone has its quota, short periods and exact measurements.
func TestAlone(t *testing.T) {
	for _, members := range [][]member{
		{launches(30, 100*time.Millisecond)}, {launches(30, time.Microsecond), idle(60)}, {idle(30)},
	} {
		got := plan(now, 0, members)[0]
		if want := (layout.Turn{Core: 30, Period: period, Part: layout.WholePeriod}); got != want {
			t.Errorf("%+v: got %+v, want %+v", members, got, want)
		}
	}
}

// TestTurnsDoNotOverlap: whoever works side by side has a period of one length,
// in which their parts lie apart.
func TestTurnsDoNotOverlap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		var members []member
		left := 100
		for left > 0 && len(members) < 12 {
			quota := 1 + random.IntN(left)
			left -= quota
			m := launches(quota, time.Duration(random.Int64N(int64(100*time.Millisecond))))
			if random.IntN(4) == 0 {
				m = idle(quota)
			}
			m.mayBurst = random.IntN(4) == 0
			members = append(members, m)
		}
		turns := plan(now, 0, members)
		for i, a := range turns {
			if a.Core < uint32(members[i].quota) || a.Core > uint32(members[i].quota) && !members[i].mayBurst || a.Phase >= a.Period ||
				a.Period < layout.MinPeriod || a.Period > layout.MaxPeriod {
				t.Fatalf("%+v: turn %d is %+v", members, i, a)
			}
			for j, b := range turns {
				if i == j || !members[i].working(now, 0) || !members[j].working(now, 0) {
					continue
				}
				part := time.Duration(a.Part) * a.Period / layout.WholePeriod
				if part < time.Duration(a.Core)*a.Period/100-a.Period/layout.WholePeriod {
					t.Fatalf("%+v: turn %+v is shorter than its part", members, a)
				}
				apart := (b.Phase - a.Phase + a.Period) % a.Period
				if a.Period != b.Period || apart < part-time.Microsecond {
					t.Fatalf("%+v: turns %+v and %+v overlap", members, a, b)
				}
			}
		}
	}
}

// TestLongLaunches: periods become long enough for neighbours' launches, within bounds.
func TestLongLaunches(t *testing.T) {
	for _, test := range []struct{ longest, want time.Duration }{
		{time.Microsecond, turnPeriod}, {time.Millisecond, 22 * time.Millisecond}, {9 * time.Millisecond, 29 * time.Millisecond}, {time.Second, 484 * time.Millisecond},
	} {
		for i, turn := range plan(now, 0, []member{launches(30, test.longest), launches(60, 0)}) {
			if turn.Period != test.want || !turn.Neighbours {
				t.Errorf("longest %v: turn %d is %+v, want a period of %v", test.longest, i, turn, test.want)
			}
		}
	}
}

// TestTurnsStay: a length that is a little too short stays, since another one would
// move everybody's turn; a container that waits for a long turn still has one.
func TestTurnsStay(t *testing.T) {
	const before = 95 * time.Millisecond
	waiting := launches(60, 0)
	waiting.LastLaunch = now - before
	for longest, want := range map[time.Duration]time.Duration{
		30 * time.Millisecond: before, 32 * time.Millisecond: 103 * time.Millisecond, 27 * time.Millisecond: 87 * time.Millisecond,
	} {
		if turns := plan(now, before, []member{launches(30, longest), waiting}); turns[0].Period != want || turns[1].Period != want {
			t.Errorf("longest %v: %+v, want a period of %v", longest, turns, want)
		}
	}
}

// TestIdleTime: what working containers' quotas leave goes to those that may
// burst, and only while nobody without a quota takes it.
func TestIdleTime(t *testing.T) {
	for name, test := range map[string]struct {
		members []member
		want    []uint32
	}{
		"alone":                         {[]member{bursting(launches(30, 0)), idle(60)}, []uint32{100, 60}},
		"guaranteed neighbour launches": {[]member{bursting(launches(30, 0)), launches(60, 0)}, []uint32{40, 60}},
		"neighbour pays for the past":   {[]member{bursting(launches(30, 0)), {quota: 60, Activity: layout.Activity{PaidUntil: now + 1}}}, []uint32{40, 60}},
		"two of them, by quota":         {[]member{bursting(launches(10, 0)), bursting(launches(30, 0))}, []uint32{25, 75}},
		"idle ones get nothing":         {[]member{bursting(idle(30)), launches(60, 0)}, []uint32{30, 60}},
		"may not":                       {[]member{launches(30, 0), idle(60)}, []uint32{30, 60}},
		"somebody without a quota":      {[]member{bursting(launches(30, 0)), {lives: true}}, []uint32{30, 0}},
		"nothing left":                  {[]member{bursting(launches(50, 0)), launches(60, 0)}, []uint32{50, 60}},
	} {
		for i, turn := range plan(now, 0, test.members) {
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
		{[]member{launches(30, 0), {lives: true}}, []bool{true, true}},
		{[]member{launches(30, 0), {lives: false}}, []bool{false, true}},
	} {
		for i, turn := range plan(now, 0, test.members) {
			if turn.Neighbours != test.want[i] {
				t.Errorf("%+v: container %d has neighbours: %v, want %v", test.members, i, turn.Neighbours, test.want[i])
			}
		}
	}
}
