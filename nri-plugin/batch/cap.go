// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"cmp"
	"slices"
	"time"

	"vernier.dev/vernier/api/v1alpha1"
)

// MilliCPU is thousandths of a processor's time.
type MilliCPU int64

// Cores is the same in whole processors.
func (m MilliCPU) Cores() float64 { return float64(m) / 1000 }

const (
	// least is what a container always has, however busy the others are: it must be
	// able to answer its probes, and to end.
	least MilliCPU = 50
	// grain of the containers' quotas.
	grain MilliCPU = 10
	// floorPart and stepPart of the node's processors: what the containers together
	// always have, and by how much room must have changed for the cap to follow.
	floorPart, stepPart = 20, 20
	// settle is for how long there must have been more room before the cap rises. It
	// falls at once.
	settle = 30 * time.Second
)

// Cap is the processor time that all opportunistic containers of a node may use
// together. It follows what the others leave: down at once, up when it has lasted,
// and not for less than a step. Every change is a call of the runtime for
// each container. The zero value has seen nothing.
type Cap struct {
	// Share of the node's processors that the containers and everybody else may use
	// together. The rest of them is the others' headroom.
	Share v1alpha1.Percent

	now, lowest MilliCPU
	rising      time.Time
}

// Follow tells the cap for that many containers on a node of that size, of which
// the others use so much.
func (c *Cap) Follow(at time.Time, node, others MilliCPU, containers int) MilliCPU {
	room, step := node*MilliCPU(c.Share)/100-others, node/stepPart
	floor := max(node/floorPart, least*MilliCPU(containers))
	room = max(room, floor)
	switch {
	case c.now == 0 || room <= c.now-step:
		c.now, c.rising = room, time.Time{}
	case room < c.now+step:
		c.rising = time.Time{}
	case c.rising.IsZero():
		c.rising, c.lowest = at, room
	default:
		c.lowest = min(c.lowest, room)
		if at.Sub(c.rising) >= settle {
			c.now, c.rising = c.lowest, time.Time{}
		}
	}
	c.now = max(c.now, floor)
	return c.now
}

// divide gives each container an equal part of the cap; what one may not use by its
// own limit (0 is none) the others get. The parts add up to no more than the cap.
func divide(whole MilliCPU, limits []MilliCPU) []MilliCPU {
	order := make([]int, len(limits))
	for i := range order {
		order[i] = i
	}
	// The most narrowly limited first: what they leave is known when the others'
	// turn comes.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(width(limits[a]), width(limits[b])) })
	parts := make([]MilliCPU, len(limits))
	for done, i := range order {
		part := whole / MilliCPU(len(order)-done)
		parts[i] = min(part-part%grain, width(limits[i]))
		whole -= parts[i]
	}
	return parts
}

// width of a limit, for comparisons.
func width(limit MilliCPU) MilliCPU {
	if limit <= 0 {
		return 1 << 40
	}
	return limit
}
