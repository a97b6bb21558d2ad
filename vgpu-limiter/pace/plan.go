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
	// turnPeriod is that of containers that work side by side.
	turnPeriod = 20 * time.Millisecond
	// longestPeriod bounds how long a container may have to wait for its turn
	// because a neighbour's launches are long.
	longestPeriod = 500 * time.Millisecond
	// recent is for how long after a launch a container counts as working.
	recent = 50 * time.Millisecond
)

// member is one container on one GPU as the plan sees it.
type member struct {
	quota    int // percent; 0 for none
	mayBurst bool
	lives    bool // without a quota: has processes that use CUDA
	layout.Activity
}

// working: it launches, or what it has launched isn't paid for yet. One that waits
// for its turn launches once in as long as turns have taken.
func (m member) working(now, before time.Duration) bool {
	if m.quota == 0 {
		return m.lives
	}
	return m.LastLaunch > now-max(recent, 2*before) || m.PaidUntil > now
}

// plan says what holds for each of the containers of one GPU. It is a pure
// function of what they have done, and of how long turns have been before.
func plan(now, before time.Duration, members []member) []layout.Turn {
	turns := make([]layout.Turn, len(members))
	var working, paced []int // paced: working within a quota
	quotas := 0
	for i, m := range members {
		turns[i] = layout.Turn{Core: uint32(m.quota), Period: period, Part: layout.WholePeriod}
		if m.working(now, before) {
			working = append(working, i)
			if m.quota != 0 {
				paced = append(paced, i)
				quotas += m.quota
			}
		}
	}
	for i := range members {
		turns[i].Neighbours = len(working) > 1 || len(working) == 1 && working[0] != i
	}
	if len(paced) == len(working) { // whoever has no quota takes what is idle
		giveIdle(members, turns, paced, 100-quotas)
	}
	takeTurns(before, members, turns, paced)
	return turns
}

// giveIdle shares out what the quotas of working containers leave, in
// proportion to the quotas of those that may have it.
func giveIdle(members []member, turns []layout.Turn, paced []int, idle int) {
	weights := 0
	for _, i := range paced {
		if members[i].mayBurst {
			weights += members[i].quota
		}
	}
	if idle <= 0 || weights == 0 {
		return
	}
	for _, i := range paced {
		if members[i].mayBurst {
			turns[i].Core += uint32(idle * members[i].quota / weights)
		}
	}
}

// takeTurns gives those that work side by side periods of one length, long enough
// for whole launches of the longest of each, that begin as far apart as their parts are long.
// What nobody's part takes is left free between them. Another length moves all turns,
// so one that is only a little too short stays.
func takeTurns(before time.Duration, members []member, turns []layout.Turn, paced []int) {
	if len(paced) < 2 {
		return
	}
	length, sum := turnPeriod, 0
	for _, i := range paced {
		sum += int(turns[i].Core)
		price := members[i].Longest * 100 / time.Duration(turns[i].Core)
		if price > turnPeriod/8 { // whole launches
			length = max(length, (turnPeriod+price-1)/price*price)
		}
	}
	length = min(length, longestPeriod)
	if before <= length && before >= length-length/16 {
		length = before
	} else if length > turnPeriod {
		length = (length - length/32).Truncate(period / 10)
	}
	order := slices.Clone(paced)
	slices.SortStableFunc(order, func(a, b int) int { return int(turns[b].Core) - int(turns[a].Core) })
	gap := max(0, 100-sum) * int(length) / 100 / len(order)
	var begins time.Duration
	for _, i := range order {
		turns[i].Period = length
		turns[i].Phase = (begins % length).Truncate(time.Microsecond)
		turn := time.Duration(turns[i].Core)*length/100 + time.Duration(gap)
		turns[i].Part = uint32(min(layout.WholePeriod-1, turn*layout.WholePeriod/length))
		begins += turn
	}
}
