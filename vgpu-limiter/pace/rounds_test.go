// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// busy is a container that launches whenever it may, as the library lets it.
type busy struct {
	member
	launch time.Duration // that each of its launches takes
	used   time.Duration
	waited time.Duration // from one launch to the next, at most
}

// step lets it launch at a moment, by what it was told.
func (b *busy) step(at time.Duration, t layout.Turn) {
	b.waits = true
	part := time.Duration(t.Part) * t.Period / layout.WholePeriod
	begin := at - (at+t.Period-t.Phase)%t.Period
	price := b.launch * 100 / time.Duration(t.Core)
	for at >= t.OthersUntil && b.PaidUntil+min(price, t.Period)/2 < begin+t.Period &&
		begin+part-max(at, b.WorkingUntil) >= max(1, min(b.launch, part)/2) {
		b.PaidUntil = max(b.PaidUntil, at-time.Second) + price
		b.WorkingUntil = max(b.WorkingUntil, at) + b.launch
		b.waited = max(b.waited, at-b.LastLaunch)
		b.LastLaunch, b.Longest, b.Usual = at, b.launch, b.launch
		b.used += b.launch
		b.charged += b.launch
	}
}

// run is a device on which all work for so long. check sees each plan.
func run(all []*busy, length time.Duration, check func(at time.Duration, members []member, turns []layout.Turn)) {
	r := rhythm{}
	for at := now; at < now+length; {
		members := make([]member, len(all))
		for i, b := range all {
			members[i] = b.member
		}
		var turns []layout.Turn
		turns, r = plan(at, r, members)
		next := event(at, members, r)
		for i, b := range all {
			b.slot, b.charged = members[i].slot, 0
		}
		check(at, members, turns)
		for ; at < next; at += time.Millisecond / 4 {
			for i, b := range all {
				b.step(at, turns[i])
			}
		}
	}
}

// randomly is one of many loads: quotas of 5 to 90 that leave something over or nothing,
// launches of 0.3 to 100 ms.
func randomly(random *rand.Rand) []*busy {
	var all []*busy
	for left, n := 100, 2+random.IntN(3); n > 0 && left >= 5; n-- {
		quota := min(90, 5+random.IntN(left-4))
		if n == 1 && random.IntN(2) == 0 {
			quota = min(90, left)
		}
		left -= quota
		launch := time.Duration(0.3 * math.Pow(333, random.Float64()) * float64(time.Millisecond))
		all = append(all, &busy{member: member{quota: quota, Activity: layout.Activity{LastLaunch: now, PaidUntil: now}}, launch: launch})
	}
	return all
}

// TestMeans: side by side each container has its quota within about 1 point, whatever
// launches take and whether anything is left over; turns never overlap; and nobody waits
// for longer than two periods, or than until the launch before is paid off and a period,
// and the turns of others.
func TestMeans(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		all := randomly(random)
		if len(all) < 2 {
			continue
		}
		const length = 60 * time.Second
		var longest time.Duration // period
		run(all, length, func(at time.Duration, members []member, turns []layout.Turn) {
			order := []int{}
			for i, m := range members {
				order, longest = append(order, i), max(longest, turns[i].Period)
				if turns[i].Core != uint32(m.quota) || turns[i].Period < time.Millisecond || turns[i].Period > longestPeriod || turns[i].Phase >= turns[i].Period {
					t.Fatalf("turn %d is %+v", i, turns[i])
				}
			}
			slices.SortFunc(order, func(a, b int) int { return int(members[a].slot.begin - members[b].slot.begin) })
			for n, i := range order[1:] {
				s, before := members[i].slot, members[order[n]].slot
				if s.begun || s.begin <= at || before.end > s.begin || turns[i].OthersUntil < s.begin {
					t.Fatalf("%v: turns %+v and %+v, told %+v", at-now, before, s, turns[i])
				}
			}
		})
		for i, b := range all {
			got := 100 * float64(b.used) / float64(length)
			if most := longest + max(2*longest, longest+b.launch*100/time.Duration(b.quota)) + b.launch; b.waited > most {
				t.Errorf("%d percent in launches of %v waited %v, with periods of %v", b.quota, b.launch, b.waited, longest)
			}
			if math.Abs(got-float64(b.quota)) > 1.2 {
				t.Errorf("%d percent in launches of %v got %.2f", b.quota, b.launch, got)
				for j, other := range all {
					if j != i {
						t.Logf("beside %d percent in launches of %v", other.quota, other.launch)
					}
				}
			}
		}
	}
}

// TestLies: a container that says that it is always behind, or that what it has launched
// is never through, leaves others at least a third of their quotas.
func TestLies(t *testing.T) {
	const ms = time.Millisecond
	for name, lie := range map[string]func(*busy){
		"behind":        func(b *busy) { b.PaidUntil = 0 },
		"never through": func(b *busy) { b.WorkingUntil = math.MaxInt64 / 2 },
		"both":          func(b *busy) { b.PaidUntil, b.WorkingUntil = 0, math.MaxInt64/2 },
	} {
		honest := &busy{member: member{quota: 60, Activity: layout.Activity{LastLaunch: now, PaidUntil: now}}, launch: ms}
		liar := &busy{member: member{quota: 30, Activity: layout.Activity{LastLaunch: now, PaidUntil: now}}, launch: ms}
		const length = 20 * time.Second
		run([]*busy{honest, liar}, length, func(at time.Duration, _ []member, _ []layout.Turn) {
			lie(liar)
			liar.LastLaunch, liar.waits = at, true
		})
		if got := 100 * float64(honest.used) / float64(length); got < 20 {
			t.Errorf("%s: 60 percent got %.1f", name, got)
		}
	}
}

// TestLies_OfOneThatYields: a container without a quota that says that what it has launched
// is never through, that it was charged nothing, or has its turn for ever, leaves those with
// one at least a third of it, and those like it something.
func TestLies_OfOneThatYields(t *testing.T) {
	const ms = time.Millisecond
	for name, lie := range map[string]func(*busy){
		"never through":   func(b *busy) { b.WorkingUntil = math.MaxInt64 / 2 },
		"charged nothing": func(b *busy) { b.charged = 0 },
		"behind":          func(b *busy) { b.PaidUntil = 0 },
		"all":             func(b *busy) { b.PaidUntil, b.WorkingUntil, b.charged = 0, math.MaxInt64/2, 0 },
	} {
		quota := &busy{member: member{quota: 60, Activity: layout.Activity{LastLaunch: now, PaidUntil: now}}, launch: ms}
		liar := &busy{member: member{Activity: layout.Activity{LastLaunch: now, PaidUntil: now}}, launch: ms}
		honest := &busy{member: member{Activity: layout.Activity{LastLaunch: now, PaidUntil: now}}, launch: ms}
		const length = 20 * time.Second
		run([]*busy{quota, liar, honest}, length, func(at time.Duration, _ []member, _ []layout.Turn) {
			lie(liar)
			liar.LastLaunch, liar.waits = at, true
		})
		got, other := 100*float64(quota.used)/float64(length), 100*float64(honest.used)/float64(length)
		if t.Logf("%s: %.1f and %.1f", name, got, other); got < 20 || other < 0.3 {
			t.Errorf("%s: 60 percent got %.1f, one without a quota %.1f", name, got, other)
		}
	}
}

// TestTurnsOfThoseThatYield: at most one of all has its turn; those that yield have theirs
// one after the other; and those with a quota have it.
func TestTurnsOfThoseThatYield(t *testing.T) {
	all := []*busy{}
	for i, quota := range []int{30, 40, 0, 0, 0} {
		launch := time.Duration(i+1) * time.Millisecond / 2
		all = append(all, &busy{member: member{quota: quota, Activity: layout.Activity{LastLaunch: now, PaidUntil: now}}, launch: launch})
	}
	const length = 20 * time.Second
	run(all, length, func(at time.Duration, members []member, turns []layout.Turn) {
		begun := 0
		for i, turn := range turns {
			if turn.OthersUntil <= at {
				begun++
			}
			if members[i].quota == 0 && turn.Part == layout.WholePeriod {
				t.Fatalf("%v: container %d is told that it may launch at any time", at-now, i)
			}
		}
		if begun > 1 {
			t.Fatalf("%v: %d have their turns: %+v", at-now, begun, turns)
		}
	})
	for _, b := range all {
		got := 100 * float64(b.used) / float64(length)
		t.Logf("%d percent: %.1f, waited %v", b.quota, got, b.waited)
		if b.quota != 0 && math.Abs(got-float64(b.quota)) > 1.2 || b.quota == 0 && got < 3 {
			t.Errorf("%d percent got %.1f", b.quota, got)
		}
	}
}
