// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"
)

// Rank plans the demand on every node where it fits, best first.
//
// The pod's wishes come first: the level of topology that it named before the next
// lower one. Then what holds it best: a plan with instances of MIG before one
// without. Then pack prefers the plan that takes the fewest empty devices, then
// the one whose devices are left with least, then the fuller node. Policy spread prefers the opposite of each. Equal nodes are taken by name.
func Rank(demand *Demand, nodes []*Node) []Plan {
	var plans []Plan
	for _, n := range nodes {
		if plan, ok := Fit(demand, n); ok {
			plans = append(plans, plan)
		}
	}
	slices.SortFunc(plans, func(a, b Plan) int {
		return cmp.Or(demand.Compare(&a, &b), cmp.Compare(a.Node, b.Node))
	})
	return plans
}

// weigh computes what Rank compares.
func (s *search) weigh(plan *Plan) {
	var touched, all, used int64
	plan.opened = 0
	for d := range s.node.Devices {
		left := s.node.Devices[d].leftover(s.peak(d))
		all += left
		if s.slices[d] > 0 {
			touched += left
			used++
			plan.opened += int64(b2i(s.node.Devices[d].whole()))
		}
	}
	plan.touched = touched / max(used, 1)
	plan.rest = all / max(int64(len(s.node.Devices)), 1)
	plan.level = s.level()
}
