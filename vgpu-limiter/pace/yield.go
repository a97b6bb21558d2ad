// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"cmp"
	"slices"
	"time"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Containers without a quota yield to their neighbours with one. Where there is none,
// nothing is measured. Where none works, nothing holds them back, but that they launch a
// few milliseconds ahead at most: what they have launched is in the way of the first that
// comes. Otherwise all that yield on a GPU are one class, which takes part in the turns:
//
//   - Its turn comes when nobody with a quota wants one, and ends when somebody does: when
//     a launch waits whose quota is not used up.
//   - While the others want all of the device it has `least` percent of it.
//   - A turn of those with a quota ends early when they launch nothing in it.
//   - Within the class turns go round, by this package's own clock: no container can take
//     another's place by what it writes into its counters.
//
// Without this package each goes by its plain quota, its part of what the quotas of all
// neighbours leave.

const (
	least = 1 // percent of the device; twice as much where quotas leave that
	// idleGrace is for how long a container counts as working without work on the device.
	idleGrace = time.Millisecond
)

// yielding is the class of one GPU.
type yielding struct {
	slot      slot
	contended bool          // others wanted the device
	paid      time.Duration // until when what it had then is paid off, at its least share
}

// plainQuota is what a container has on a GPU when nobody says more, for each of those
// there by their quotas, -1 for idle slices; 0: it isn't measured, or its limits say it.
func plainQuota(quotas []int, i int) uint32 {
	sum, yield := 0, 0
	for _, q := range quotas {
		sum += max(q, 0)
		if q == 0 {
			yield++
		}
	}
	switch {
	case quotas[i] == 100 && len(quotas) > 1:
		return 100
	case quotas[i] == 0 && sum > 0:
		return uint32(max(1, (100-sum)/yield))
	}
	return 0
}

// wants: it launches, or has a launch that waits, and its quota pays for it.
func (m member) wants(now time.Duration) bool {
	return m.PaidUntil <= now && (m.waits || max(m.LastLaunch, m.WorkingUntil)+idleGrace > now)
}

// idles is when a turn that has begun is over, if nothing is launched in it until then.
func (m member) idles() time.Duration {
	return max(m.slot.begin, m.LastLaunch, m.WorkingUntil) + idleGrace
}

// classOf is the class as one member.
func classOf(now time.Duration, before rhythm, members []member, paced, yield []int) member {
	core := 100
	for _, i := range paced {
		core -= members[i].quota
	}
	class := member{quota: max(least, min(core, 2*least)), class: true, slot: before.yields.slot}
	charged := time.Duration(0)
	for _, i := range yield {
		m := members[i]
		charged += m.charged
		class.waits = class.waits || m.waits
		class.LastLaunch = max(class.LastLaunch, m.LastLaunch)
		class.WorkingUntil = max(class.WorkingUntil, m.WorkingUntil)
	}
	class.PaidUntil = max(before.yields.paid, now-layout.MaxPeriod)
	if before.yields.contended {
		class.PaidUntil = max(class.PaidUntil+charged*95/time.Duration(class.quota), now-layout.MaxPeriod)
	}
	next := members[turnOf(class.slot.begun, members, yield)]
	class.Longest, class.Usual = next.Longest, next.Usual
	return class
}

// turnOf is which of the class has its turn: the one that has it, while it has begun, or
// else the one that waits and had its turn longest ago.
func turnOf(begun bool, members []member, yield []int) int {
	if i := slices.IndexFunc(yield, func(i int) bool { return members[i].slot.begun }); begun && i >= 0 {
		return yield[i]
	}
	return slices.MinFunc(yield, func(a, b int) int {
		if members[a].waits != members[b].waits {
			return map[bool]int{true: -1, false: 1}[members[a].waits]
		}
		return cmp.Compare(members[a].slot.last, members[b].slot.last)
	})
}

// takeTurnsWithClass moves the turns on of those that work within a quota and of the
// class that yields.
func takeTurnsWithClass(now time.Duration, before rhythm, members []member, turns []layout.Turn, paced, yield []int) rhythm {
	class, n := classOf(now, before, members, paced, yield), len(members)
	all := append(slices.Clone(members), class)
	allTurns := append(slices.Clone(turns), layout.Turn{Core: uint32(class.quota)})
	r := takeTurns(now, before, all, allTurns, append(slices.Clone(paced), n))
	copy(members, all)
	copy(turns, allTurns)
	r.yields = yielding{
		slot: all[n].slot, paid: class.PaidUntil,
		contended: slices.ContainsFunc(paced, func(i int) bool { return members[i].wants(now) }),
	}
	allTurns[n].Core, allTurns[n].Neighbours = 100, true
	pass(before.yields.slot, r.yields.slot, allTurns[n], members, turns, yield)
	return r
}

// pass gives the class's turn to one of its containers. The others go on waiting.
func pass(before, after slot, turn layout.Turn, members []member, turns []layout.Turn, yield []int) {
	holder := turnOf(before.begun && after.begun && before.begin == after.begin, members, yield)
	for _, i := range yield {
		members[i].slot.begun = i == holder && after.begun
	}
	turns[holder] = turn
	if after.begun {
		members[holder].slot.last = after.begin
	}
}
