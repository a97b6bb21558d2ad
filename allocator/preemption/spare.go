// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/leaving"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// spare has the pods stay that need not leave after all, the most important first: beside what
// others leave for a pod, one that left for another may have room. Of one pod's choice all have
// to leave.
func (pl *planner) spare(ctx context.Context, pods []scheduling.Request) error {
	if len(pods) < 2 {
		return nil
	}
	priority := func(unit []types.UID) (highest int32) {
		highest = leaving.None.Priority
		for _, uid := range unit {
			highest = max(highest, pl.cache.Priorities.Of(pl.leaving[uid]).Against(pl.asker.Priority.Namespace))
		}
		return highest
	}
	units := slices.DeleteFunc(pl.units, func(unit []types.UID) bool {
		return slices.ContainsFunc(unit, func(uid types.UID) bool { return pl.leaving[uid] == nil })
	})
	slices.SortStableFunc(units, func(a, b []types.UID) int { return cmp.Compare(priority(b), priority(a)) })
	for _, unit := range units {
		back, fits := pl.fitsWith(unit)
		if !fits {
			continue
		}
		if ok, err := pl.acceptsBeside(ctx, unit, back, pods); err != nil {
			return err
		} else if !ok {
			continue
		}
		for name, ledger := range back {
			pl.nodes[name].ledger = ledger
		}
		for _, uid := range unit {
			delete(pl.leaving, uid)
		}
	}
	return nil
}

// fitsWith reports whether the plans hold where the pods stay, with the ledgers of their nodes
// then.
func (pl *planner) fitsWith(unit []types.UID) (back map[string]*v1alpha1.SliceLedger, fits bool) {
	back = map[string]*v1alpha1.SliceLedger{}
	for _, uid := range unit {
		for _, name := range pl.cache.Index.Holders(uid) {
			n, whole := pl.nodes[name], pl.cache.Index.Ledger(name)
			if n == nil || whole == nil {
				return nil, false
			}
			var gone []types.UID
			still := grants.Pods(n.ledger)
			for other := range grants.Pods(whole) {
				if still[other] == "" && !slices.Contains(unit, other) {
					gone = append(gone, other)
				}
			}
			back[name] = grants.Without(whole, func(uid types.UID) bool { return slices.Contains(gone, uid) })
			room := pl.offered(back[name])
			for i := range n.plans {
				if room == nil || !room.Holds(&n.plans[i]) {
					return nil, false
				}
				room = room.Without(&n.plans[i])
			}
		}
	}
	return back, true
}

// acceptsBeside reports whether the scheduler would still take the pods that go to those nodes,
// where the others stay there.
func (pl *planner) acceptsBeside(ctx context.Context, unit []types.UID, on map[string]*v1alpha1.SliceLedger, pods []scheduling.Request) (ok bool, err error) {
	for _, uid := range unit {
		other := pl.leaving[uid]
		if err := pl.assumed.Recount(other, podstate.TargetNode(other)); err != nil {
			return false, err
		}
	}
	defer func() {
		for _, uid := range unit {
			if pl.leaving[uid] != nil && !ok {
				err = errors.Join(err, pl.assumed.Recount(pl.leaving[uid], ""))
			}
		}
	}()
	for i, pod := range pods {
		name := pl.plans[i].Node
		if on[name] == nil {
			continue
		}
		if err := pl.assumed.Recount(pod.Pod, ""); err != nil {
			return false, err
		}
		cycle, err := pl.filters.Start(ctx, pod.Pod)
		if err != nil {
			return false, err
		}
		against, err := cycle.Refusals(ctx, name)
		if err := errors.Join(err, pl.assumed.Recount(pod.Pod, name)); err != nil || len(against) > 0 {
			return false, err
		}
	}
	return true, nil
}
