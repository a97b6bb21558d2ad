// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// together are the other plans on the node of this one in which all containers that ask for
// one device have the same, best first as Rank has it. None where there is nothing to bring
// together, or where fewer of the containers would have an instance of MIG, or a larger one, or
// the devices would be less near each other.
// The plan itself is weighed.
func together(demand *Demand, node *Node, plan *Plan) []Plan {
	s := newSearch(demand, node)
	if !s.follow(plan) {
		return nil
	}
	s.weigh(plan)
	var single []int
	on := map[int]bool{}
	for _, i := range s.order {
		if demand.Containers[i].Share.GPUs == 1 {
			single = append(single, i)
			on[s.chosen[i][0]] = true
		}
	}
	if len(on) < 2 {
		return nil
	}
	for _, i := range slices.Backward(single) {
		s.drop(i, s.chosen[i][0])
	}
	var plans []Plan
	for d := range node.Devices {
		n := 0
		for n < len(single) && s.fix(single[n], []int{d}) {
			n++
		}
		if n == len(single) {
			if other := s.plan(); other.instances() == plan.instances() {
				if s.weigh(&other); other.level <= plan.level {
					plans = append(plans, other)
				}
			}
		}
		for _, i := range slices.Backward(single[:n]) {
			s.drop(i, d)
		}
	}
	slices.SortStableFunc(plans, func(a, b Plan) int { return demand.Compare(&a, &b) })
	return plans
}

// Compare orders two plans on one node, the better one first.
func (d *Demand) Compare(a, b *Plan) int {
	return cmp.Or(cmp.Compare(a.level, b.level), cmp.Compare(b.cut, a.cut), d.prefer(a.opened, b.opened), d.prefer(a.touched, b.touched), d.prefer(a.rest, b.rest))
}

// follow places the containers as the plan does; false where that does not fit.
func (s *search) follow(plan *Plan) bool {
	devices := map[string][]Has{}
	for _, g := range plan.Grants {
		devices[g.Container] = append(devices[g.Container], Has{UUID: g.UUID, MIG: g.MIG})
	}
	return s.keep(s.order, devices)
}

// instances are how many instances of MIG the plan has, and how much of their devices.
func (p *Plan) instances() [2]int32 {
	var sum [2]int32
	for _, g := range p.Grants {
		if g.Mode == v1alpha1.ModeMIG {
			sum[0], sum[1] = sum[0]+1, sum[1]+g.MIG.Size
		}
	}
	return sum
}
