// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"cmp"
	"slices"
	"time"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Turns of containers that share a device come one after the other: the
// next is for the container furthest behind its quota, by the moment until which what it has launched
// is paid off. A launch that is longer than a turn, or doesn't fit into what is left of
// one, so is made up for later, whatever lengths and quotas come together. Each turn is
// planned again at every look until it begins.
//
// Invariants:
//   1. At most one container has its turn; no other one's begins before it is through
//      with what it was to launch, as far as it says so.
//   2. A container says nothing that holds up others for more than half a period, but for
//      `patience` in all: it may launch what nobody knows the length of, and what others
//      launched beside it would be measured with it. And nothing that gives it turns more
//      than twice as often as its share.
//   3. What was written to a pace file holds: a turn that has come is only made longer, or, of
//      one that stays the furthest behind, followed by the next before its end.
//   4. A container whose pace file isn't written again goes on with turns as far apart as
//      periods are long.

const patience = time.Second

// slot is a container's turn: the one that it has, or else the next.
type slot struct {
	begun      bool
	begin, end time.Duration // it launches in between
	length     time.Duration // of periods when it began
	work       time.Duration // about what it launches
	last, over time.Duration // when the turn before began, and was over
	most       time.Duration // for how long after that its work may hold up others
	least      time.Duration // the next is due no sooner, whatever the container says
	core       uint32
	held       time.Duration // for how long its work has held up others beyond that
}

// round plans the turns on one GPU.
type round struct {
	now, length time.Duration
	free        time.Duration // of a period, for each: nobody's share
	members     []member
	turns       []layout.Turn
	order       []int // of members: the one that has its turn, and then as they are to come
	class       bool  // one of them is all that yield
	contended   bool  // and others want the device
}

// takeTurns moves the turns on of those that share a device.
func takeTurns(now time.Duration, before rhythm, members []member, turns []layout.Turn, there []int) rhythm {
	var sharers []sharer
	changed := false
	for _, i := range there {
		one := sharer{turns[i].Core, members[i].Longest, members[i].Usual}
		if members[i].class { // its launches don't say how long others' turns are, nor its share when they begin
			one.longest, one.usual = 0, 0
			if members[i].slot.core != 0 {
				members[i].slot.core = turns[i].Core
			}
		}
		sharers = append(sharers, one)
		changed = changed || members[i].slot.core != turns[i].Core
	}
	r := next(now, before, sharers)
	g := &round{now: now, length: r.length, free: time.Duration(free(sharers) * float64(r.length)), members: members, turns: turns, order: slices.Clone(there)}
	for _, i := range there {
		g.class = g.class || members[i].class
		g.contended = g.contended || !members[i].class && members[i].wants(now)
		if s := &members[i].slot; !s.begun && s.core != 0 && members[i].WorkingUntil > now && s.over+s.most < now {
			s.held += min(tick, now-before.looked)
		}
	}
	r.looked = now
	if changed {
		g.begin()
	}
	g.moveOn() // by what was written
	for g.forecast(); g.moveOn(); {
		g.forecast()
	}
	g.say()
	return r
}

func (g *round) slot(n int) *slot { return &g.members[g.order[n]].slot }

func (g *round) share(i int, of time.Duration) time.Duration {
	return of * time.Duration(g.turns[i].Core) / 100
}

// most is how long a turn may be: its end is written before its word looks like the
// beginning of the next one.
func (g *round) most() time.Duration { return g.length * 19 / 20 }

// work is what a container is to launch in a turn: about its share of a period, and of
// long launches whole ones.
func (g *round) work(i int) time.Duration {
	m, share := g.members[i], min(g.share(i, g.length), g.most())
	if m.Longest < g.length/50 || m.Usual < m.Longest*9/10 {
		return max(share, min(m.Usual, g.most()))
	}
	return max(1, min((share+m.Usual/2)/m.Usual, g.most()/m.Usual))*m.Usual + late
}

// begin starts the turns again, one container after the other.
func (g *round) begin() {
	at := g.now
	slices.SortStableFunc(g.order, func(a, b int) int { return cmp.Compare(g.turns[b].Core, g.turns[a].Core) })
	for _, i := range g.order {
		work := g.share(i, g.length)
		g.members[i].slot = slot{begin: at, end: at + work + g.free, work: work, last: at - g.length, over: g.now, most: g.length / 2, core: g.turns[i].Core, held: g.members[i].slot.held}
		at += work + g.free
	}
}

// moveOn ends the turn that is over, and begins the one whose time has come. It returns
// whether there was any.
func (g *round) moveOn() bool {
	slices.SortStableFunc(g.order, func(a, b int) int {
		return cmp.Compare(g.members[a].slot.when(), g.members[b].slot.when())
	})
	moved := false
	for range 2 * len(g.order) {
		s, next := g.slot(0), g.slot(1)
		switch {
		case !s.begun && s.begin <= g.now:
			s.begun, s.length = true, g.length
		case s.begun && (s.end <= g.now || next.begin <= g.now || g.unused()):
			*s = g.ended(s)
			g.order = append(g.order[1:], g.order[0])
		case s.begun && g.goesOn():
			*s = g.ended(s)
			s.begun, s.begin, s.end, s.length = true, g.now, g.now+g.most(), g.length
			s.work = min(g.most(), g.members[g.order[0]].WorkingUntil-g.now+g.catchesUp(0, g.now))
		default:
			return moved
		}
		moved = true
	}
	return moved
}

// ended is what follows a turn that ends now.
func (g *round) ended(s *slot) slot {
	half := min(g.now-s.begin, s.work) * 50 / time.Duration(s.core)
	return slot{begin: g.now + g.length, last: s.begin, over: g.now, most: s.length / 2, least: max(s.least, g.now-time.Second) + half, core: s.core, held: s.held}
}

// unused reports whether nothing is launched in the turn that has begun, while others yield.
func (g *round) unused() bool {
	m := g.members[g.order[0]]
	return g.class && !m.class && !m.wants(g.now) && m.idles() <= g.now
}

// goesOn reports whether the container that has its turn has the next one, too, since no
// other wants it: then that begins before this one's end is written, or the device would be
// idle from one to the other.
func (g *round) goesOn() bool {
	s, m := g.slot(0), g.members[g.order[0]]
	return g.now >= s.begin+g.length/2 && m.WorkingUntil > g.now && g.catchesUp(0, g.now) > 0
}

// behind is for how long the n-th container stays behind the one after, at its quota.
func (g *round) behind(n int) time.Duration {
	if n+1 == len(g.order) {
		return 0
	}
	return min(g.now, g.due(g.order[n+1])) - max(g.members[g.order[n]].PaidUntil, g.slot(n).least)
}

// catchesUp is what the n-th container may launch, in a turn that begins then, until the
// next one is further behind.
func (g *round) catchesUp(n int, begin time.Duration) time.Duration {
	i := g.order[n]
	m := g.members[i]
	late, may := g.share(i, g.behind(n)), g.share(i, begin+g.length-m.PaidUntil)
	if late <= 0 || may <= min(m.Usual, g.share(i, g.length))/2 {
		return 0
	}
	usual := max(1, m.Usual)
	return min(g.most(), min((late+usual-1)/usual, max(1, (may+usual/2)/usual))*usual)
}

// when is what turns are sorted by.
func (s *slot) when() time.Duration {
	if s.begun {
		return 0
	}
	return s.begin
}

// forecast plans all turns that haven't begun.
func (g *round) forecast() {
	slices.SortStableFunc(g.order, func(a, b int) int { return cmp.Compare(g.due(a), g.due(b)) })
	at, first := g.now, 0
	if s := g.slot(0); s.begun {
		works := g.members[g.order[0]].WorkingUntil
		if more := g.catchesUp(0, s.begin); more > 0 && works > g.now {
			s.work = max(s.work, min(g.most(), min(works-s.begin, g.length)+more))
			s.end = max(s.end, s.begin+s.work)
		}
		at, first = g.through(), 1
	}
	for _, i := range g.order[first:] {
		at = max(at, g.worksUntil(i))
	}
	for n := first; n < len(g.order); n++ {
		s := g.slot(n)
		s.begin = (max(at, g.due(g.order[n])) + time.Microsecond - 1).Truncate(time.Microsecond)
		s.work = g.work(g.order[n])
		if n == 0 && g.members[g.order[n]].waits {
			s.work = max(s.work, g.catchesUp(n, s.begin))
		}
		at = s.begin + s.work
	}
	for n := range g.order {
		s := g.slot(n)
		s.end = s.begin + min(s.work+g.free, g.most())
		if n+1 < len(g.order) { // it has what nobody wants yet, and no more than that
			until := max(s.end, min(s.begin+g.most(), g.due(g.order[n+1])))
			s.end = max(s.begin, min(until, g.slot(n+1).begin))
		}
		if m := g.members[g.order[n]]; s.begun && m.Usual > g.length/50 && m.PaidUntil < g.now-g.length/2 {
			s.end = min(s.end, max(g.through(), g.now)) // it may be the next one again
		}
	}
}

// due is when a container's next turn is to come: once all that it has launched is paid
// off. If it neither waits for its turn nor was at work when the last one was over, that
// is no sooner than a period after it.
func (g *round) due(i int) time.Duration {
	m := g.members[i]
	switch {
	case m.slot.begun:
		return 0
	case m.class && g.contended:
		return m.PaidUntil
	case m.class:
		return g.now
	case (m.waits || m.WorkingUntil >= m.slot.over) && m.slot.over > m.slot.last:
		return max(m.PaidUntil, m.slot.least)
	}
	return max(m.PaidUntil, m.slot.last+g.length)
}

// worksUntil is when what a container launched in its last turn is through. That is the
// tenant's word.
func (g *round) worksUntil(i int) time.Duration {
	s := g.members[i].slot
	return min(g.members[i].WorkingUntil, max(g.now+patience-s.held, s.over+s.most))
}

// through is when the container that has its turn is through with it: with what it has
// launched and, as far as there is room, with what it may launch yet.
func (g *round) through() time.Duration {
	m, s := g.members[g.order[0]], g.slot(0)
	works := min(m.WorkingUntil, s.begin+s.work+g.length/2)
	if m.class && g.now >= s.begin+s.work && g.contended {
		return max(works, g.now)
	}
	left := g.share(g.order[0], max(0, s.begin+g.length-m.PaidUntil))
	if left < max(late, min(m.Usual, g.share(g.order[0], g.length))/2) || s.end-max(g.now, works) < min(m.Usual, s.end-s.begin)/2 {
		left = 0
	} else if m.Usual > 0 && m.Usual >= m.Longest*9/10 { // whole launches
		left = max(1, (left+m.Usual/2)/m.Usual) * m.Usual
	}
	return max(works, min(s.begin+s.work+g.free, max(g.now, works)+left))
}

// say fills the turns that are written.
func (g *round) say() {
	for n, i := range g.order {
		s, t := g.slot(n), &g.turns[i]
		t.Period, t.Phase = g.length, s.begin%g.length
		t.Part = uint32(min(layout.WholePeriod-1, max(1, ((s.end-s.begin)*layout.WholePeriod+g.length-1)/g.length)))
		t.OthersUntil = s.begin
		for _, j := range g.order {
			if s.begun && j != i {
				t.OthersUntil = max(t.OthersUntil, min(g.worksUntil(j), s.begin+(s.end-s.begin)/2))
			}
		}
	}
}

// event is when the turns are to be looked at again, a tick from now at the latest.
func event(now time.Duration, members []member, r rhythm) time.Duration {
	at := now + tick
	for _, m := range append(slices.Clone(members), member{class: true, slot: r.yields.slot}) {
		events := []time.Duration{m.slot.begin, m.slot.end}
		if m.slot.begun && !m.class && r.yields.slot.core != 0 {
			events = append(events, m.idles())
		}
		for _, e := range events {
			if e > now {
				at = min(at, e)
			}
		}
	}
	return at
}
