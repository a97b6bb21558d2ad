// SPDX-License-Identifier: Apache-2.0

package scheduling

import "slices"

// inTurn sorts by pod affinity: selected pods before selectors. The scheduler would refuse a
// selector before the pods that it selects; or, where it may take it as the first of its kind,
// anywhere, it would refuse it after one of them that is elsewhere. Beside all of them it is
// taken in the end, in whatever order the scheduler comes to them. Of two pods that select
// each other, the one with the narrower topology goes second: beside the other it satisfies
// both.
func (s *Scheduler) inTurn(order []Request) []Request {
	if !slices.ContainsFunc(order, func(p Request) bool {
		return p.Pod.Spec.Affinity != nil || len(p.Pod.Spec.TopologySpreadConstraints) > 0
	}) {
		return order
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
	// after are the kinds behind which those of a kind go.
	after, any := make([][]bool, len(k.example)), false
	for p, there := range k.terms {
		after[p] = make([]bool, len(k.example))
		for q, back := range k.terms {
			after[p][q] = there.Selects(k.example[q]) &&
				(!back.Selects(k.example[p]) || nearest(there.Near(k.example[q])) > nearest(back.Near(k.example[p])))
			any = any || after[p][q]
		}
	}
	if !any {
		return order
	}
	turn, begun, entered := make([]Request, 0, len(order)), make([]bool, len(order)), make([]bool, len(k.example))
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
				if after[kind][k.of[j]] {
					enter(j)
				}
			}
		}
		turn = append(turn, order[i])
	}
	for i := range order {
		enter(i)
	}
	return turn
}
