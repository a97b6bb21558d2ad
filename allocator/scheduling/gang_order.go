// SPDX-License-Identifier: Apache-2.0

package scheduling

import "slices"

// inTurn sorts by pod affinity: selected pods before selectors. The scheduler would refuse a
// selector before the pods that it selects; or, where it may take it as the first of its kind,
// anywhere, it would refuse it after one of them that is elsewhere. Beside all of them it is
// taken in the end, in whatever order the scheduler comes to them. Of two pods that select
// each other, the one with the narrower topology goes second: beside the other it satisfies
// both. It is a circle where pods select each other in one, so that no order has all of this.
func (s *Scheduler) inTurn(order []Request) (turn []Request, circle bool) {
	if !slices.ContainsFunc(order, func(p Request) bool {
		return p.Pod.Spec.Affinity != nil || len(p.Pod.Spec.TopologySpreadConstraints) > 0
	}) {
		return order, false
	}
	k := kindsOf(order)
	domains := map[string]int{}
	nearest := func(keys []string) (most int) {
		for _, key := range keys {
			if _, known := domains[key]; !known {
				domains[key] = len(s.Filters.Domains(key))
			}
			most = max(most, domains[key])
		}
		return most
	}
	// after is how narrow the topology is for which those of a kind go behind those of another, 0
	// where they need not.
	after, narrowest := make([][]int, len(k.example)), 0
	for p, there := range k.terms {
		after[p] = make([]int, len(k.example))
		for q, back := range k.terms {
			near := nearest(there.Near(k.example[q]))
			if there.Selects(k.example[q]) && (!back.Selects(k.example[p]) || near > nearest(back.Near(k.example[p]))) {
				after[p][q] = max(near, 1)
			}
			narrowest = max(narrowest, after[p][q])
		}
	}
	if narrowest == 0 {
		return order, false
	}
	if turn, circle = k.sort(order, after, 1); circle {
		// Who is near enough to a node is also near enough in a zone.
		turn, _ = k.sort(order, after, narrowest)
	}
	return turn, circle
}

// sort heeds the terms whose topology is so narrow at least.
func (k *kinds) sort(order []Request, after [][]int, narrow int) (turn []Request, circle bool) {
	begun, entered, left := make([]bool, len(order)), make([]bool, len(k.example)), make([]bool, len(k.example))
	var enter func(i int)
	enter = func(i int) {
		if begun[i] {
			return
		}
		begun[i] = true
		// Those that go before one of a kind go before all of it.
		if kind := k.of[i]; !entered[kind] {
			entered[kind] = true
			for j := range order {
				if after[kind][k.of[j]] >= narrow {
					enter(j)
					circle = circle || !left[k.of[j]]
				}
			}
			left[kind] = true
		}
		turn = append(turn, order[i])
	}
	for i := range order {
		enter(i)
	}
	return turn, circle
}
