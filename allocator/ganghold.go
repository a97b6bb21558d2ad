// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/ledgerspec"
	"vernier.dev/vernier/allocator/podrequest"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// holdFor is how long slices are held while the rest of a gang gets its own: far
// longer than the writes take, and than a new leader needs to go on with them. Who
// is too late is decided by the ledger's version and never by a clock; expiry is for
// what nobody comes back to.
const holdFor = 30 * time.Second

// placeGang gives at least need members of a gang their slices and lets them go, or
// has none of them hold anything.
func (a *Allocator) placeGang(ctx context.Context, g *gang, asks []ask, need int) error {
	members, rest, err := a.seated(ctx, asks)
	if err != nil {
		return err
	}
	if len(rest) > 0 && len(g.due) < g.missing() {
		// They are fewer than must start together and would have followed those that were
		// let go, each with what it has. Nobody is placed anew by that.
		return a.holdNothing(ctx, g, reasonWaiting, "incomplete", g.incomplete())
	}
	choices, miss, err := a.fitInTurn(ctx, g.name, rest, need-len(members))
	if err != nil {
		return err
	}
	if miss != nil {
		a.tellMisfit(g, asks, miss, len(members), need)
		return a.giveBack(ctx, g.due)
	}
	if err := a.reserve(ctx, g, members, choices); err != nil {
		return err
	}
	for _, c := range choices {
		p := &placing{pod: c.pod, node: c.plan.Node}
		a.assume(p)
		members = append(members, p)
	}
	if err := a.commit(ctx, members); err != nil {
		return err
	}
	return a.all(len(members), func(i int) error { return a.ungate(ctx, members[i].pod, members[i].node) })
}

// seated parts the members that have good slices from the others: an allocator began
// to place the gang and died, or a write of ours got no answer.
func (a *Allocator) seated(ctx context.Context, asks []ask) (members []*placing, rest []ask, err error) {
	for _, p := range asks {
		_, shares, err := podrequest.Of(p.pod)
		if err != nil {
			return nil, nil, err
		}
		node, err := a.seatOf(ctx, p.pod, shares)
		if err != nil {
			return nil, nil, err
		}
		if node == "" {
			rest = append(rest, p)
			continue
		}
		// The next one is judged beside it.
		member := &placing{pod: p.pod, node: node}
		a.assume(member)
		members = append(members, member)
	}
	return members, rest, nil
}

// giveBack takes back what gated pods have.
func (a *Allocator) giveBack(ctx context.Context, pods []*corev1.Pod) error {
	for _, pod := range pods {
		for _, node := range a.index.Holders(pod.UID) {
			a.assume(&placing{pod: pod})
			if err := a.takeBack(ctx, pod, node); err != nil {
				return err
			}
		}
	}
	return nil
}

// reserve writes the choices into the ledgers of their nodes. Unless one write is all
// that is missing, they are held there for the gang.
func (a *Allocator) reserve(ctx context.Context, g *gang, members []*placing, choices []choice) error {
	byNode := map[string][]choice{}
	for _, c := range choices {
		byNode[c.plan.Node] = append(byNode[c.plan.Node], c)
	}
	held := len(byNode) > 1 || slices.ContainsFunc(members, a.isHeld)
	nodes := slices.Sorted(maps.Keys(byNode))
	return a.all(len(nodes), func(i int) error {
		on := byNode[nodes[i]]
		ledger := on[0].ledger.DeepCopy()
		var pods []types.UID
		for _, c := range on {
			if err := ledgerspec.Grant(ledger, c.pod.UID, podstate.KeyOf(c.pod).String(), c.plan); err != nil {
				return err
			}
			pods = append(pods, c.pod.UID)
		}
		if held {
			ledgerspec.Hold(ledger, g.name.Owner(), a.Clock.Now().Add(holdFor), pods...)
		}
		return a.write(ctx, ledger)
	})
}

func (a *Allocator) isHeld(p *placing) bool {
	ledger := a.index.Ledger(p.node)
	return ledger != nil && ledgerspec.Held(ledger)[p.pod.UID] != nil
}

// commit ends the holds on what the members have. Nothing is committed unless all of
// them have their slices, as far as is known.
func (a *Allocator) commit(ctx context.Context, members []*placing) error {
	drafts := map[string]*v1alpha1.SliceLedger{}
	for _, p := range members {
		ledger := a.index.Ledger(p.node)
		if ledger == nil || ledgerspec.Placement(ledger, p.pod.UID) == nil {
			return errAgain
		}
		if ledgerspec.Held(ledger)[p.pod.UID] == nil {
			continue
		}
		if drafts[p.node] == nil {
			drafts[p.node] = ledger.DeepCopy()
		}
		ledgerspec.Commit(drafts[p.node], func(uid types.UID) bool { return uid == p.pod.UID })
	}
	nodes := slices.Sorted(maps.Keys(drafts))
	if err := a.all(len(nodes), func(i int) error { return a.write(ctx, drafts[nodes[i]]) }); err != nil {
		return err
	}
	// Another leader may have taken back what some of them had while the others' was
	// committed: then nobody is let go.
	for _, p := range members {
		if ledger := a.index.Ledger(p.node); ledger == nil || ledgerspec.Placement(ledger, p.pod.UID) == nil {
			return errAgain
		}
	}
	return nil
}

// expired are the pods whose slices in a ledger are held past their time. next is how
// long it is until another hold ends, zero when there is none.
func (a *Allocator) expired(ledger *v1alpha1.SliceLedger) (pods map[types.UID]bool, next time.Duration) {
	now := a.Clock.Now()
	for _, h := range ledger.Spec.Holds {
		left := h.Until.Sub(now)
		if left > 0 {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		for _, pod := range h.Pods {
			if pods == nil {
				pods = map[types.UID]bool{}
			}
			pods[pod] = true
		}
	}
	return pods, next
}
