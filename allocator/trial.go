// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"slices"

	"vernier.dev/vernier/allocator/placement"
)

// trial is a decision under way: what the pods of the set that were decided on
// leave for the others. It lasts for one call of decide.
type trial struct {
	*Allocator
	choices []choice
	// counted is how many of the choices the filters count where they will be.
	counted int
	// touched are the nodes of the choices.
	touched map[string]*touched
}

// touched is a node as the index shows it, and what the choices leave of it.
type touched struct{ shown, left *placement.Node }

// next chooses for one more pod of the set, which is beside those before it. Without
// a choice that the scheduler accepts it says why.
func (t *trial) next(ctx context.Context, pod ask) (*shortage, error) {
	// What was chosen last takes part in what the filters say.
	for ; t.counted < len(t.choices); t.counted++ {
		last := &t.choices[t.counted]
		if _, err := t.Filters.Count(last.pod, last.plan.Node); err != nil {
			return nil, err
		}
	}
	nodes := t.settled(t.index.Room())
	left := slices.Clone(nodes)
	for i, n := range nodes {
		if on := t.touched[n.Name]; on != nil {
			left[i] = on.left
		}
	}
	plans := placement.Rank(pod.demand, left)
	why := &shortage{refused: len(plans), reasons: reasons{}}
	if len(plans) > 0 {
		cycle, err := t.Filters.Start(ctx, pod.pod)
		if err != nil {
			return nil, err
		}
		for _, plan := range plans {
			against, err := cycle.Refusals(ctx, plan.Node)
			if err != nil {
				return nil, err
			}
			if len(against) == 0 {
				t.take(pod, plan, nodes[slices.IndexFunc(nodes, func(n *placement.Node) bool { return n.Name == plan.Node })])
				return nil, nil
			}
			why.reasons.add(against)
		}
	}
	why.devices = placement.Explain(pod.demand, slices.DeleteFunc(left, func(n *placement.Node) bool {
		return slices.ContainsFunc(plans, func(p placement.Plan) bool { return p.Node == n.Name })
	}))
	return why, nil
}

// take makes the plan on a node the pod's, which leaves less of the node.
func (t *trial) take(pod ask, plan placement.Plan, shown *placement.Node) {
	if t.touched == nil {
		t.touched = map[string]*touched{}
	}
	on := t.touched[plan.Node]
	if on == nil {
		on = &touched{shown, shown}
		t.touched[plan.Node] = on
	}
	on.left = on.left.Without(&plan)
	t.choices = append(t.choices, choice{ask: pod, plan: plan})
}

// decided are the choices with the ledgers that they were made on.
func (t *trial) decided() ([]choice, error) {
	for i := range t.choices {
		c := &t.choices[i]
		if c.ledger = t.index.Behind(t.touched[c.plan.Node].shown); c.ledger == nil {
			return nil, errAgain
		}
	}
	return t.choices, nil
}

// end has the filters count the pods of the set where they are in truth, as far as
// is known now.
func (t *trial) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.choices[:t.counted] {
		if known := t.pods[keyOf(c.pod)]; known != nil && known.UID == c.pod.UID {
			t.Allocator.count(known)
		} else {
			t.countOn(c.pod, "")
		}
	}
}
