// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/refusal"
	"vernier.dev/vernier/api/v1alpha1"
)

// HoldFor is how long slices are held while the rest of a gang gets its own. It is far longer than
// the writes take, and than a new leader needs to go on with them. A write that comes too late
// is refused for the ledger's version and never for a clock. Expiry is for holds that no
// leader comes back to.
const HoldFor = 30 * time.Second

// Reserve writes the choices into the ledgers of their nodes. Unless one write is all
// that is missing, they are held there for the owner, a gang.
func (b *Binder) Reserve(ctx context.Context, owner string, members []*Pending, choices []Assignment) error {
	byNode := map[string][]Assignment{}
	for _, c := range choices {
		byNode[c.Plan.Node] = append(byNode[c.Plan.Node], c)
	}
	held := len(byNode) > 1 || slices.ContainsFunc(members, b.isHeld)
	nodes := slices.Sorted(maps.Keys(byNode))
	return b.All(len(nodes), func(i int) error {
		on := byNode[nodes[i]]
		ledger := on[0].Ledger.DeepCopy()
		var pods []types.UID
		for _, c := range on {
			if err := grants.Grant(ledger, c.Pod.UID, podstate.KeyOf(c.Pod).String(), c.Plan, b.Clock.Now()); err != nil {
				return err
			}
			pods = append(pods, c.Pod.UID)
		}
		if held {
			grants.Hold(ledger, owner, b.Clock.Now().Add(HoldFor), pods...)
		}
		err := b.Write(ctx, ledger)
		if !refusal.Is(err) {
			return err
		}
		for _, c := range on {
			_ = b.grantRefused(c.Pod, c.Plan.Node, err) // Yield, as below
		}
		return queue.Yield{}
	})
}

func (b *Binder) isHeld(p *Pending) bool {
	ledger := b.Cache.Index.Ledger(p.Node)
	return ledger != nil && grants.Held(ledger)[p.Pod.UID] != nil
}

// Commit ends the holds on what the members have. Nothing is committed unless all of
// them have their slices, as far as is known.
func (b *Binder) Commit(ctx context.Context, members []*Pending) error {
	drafts := map[string]*v1alpha1.SliceLedger{}
	for _, p := range members {
		ledger := b.Cache.Index.Ledger(p.Node)
		if ledger == nil || grants.Placement(ledger, p.Pod.UID) == nil {
			return queue.ErrAgain
		}
		if grants.Held(ledger)[p.Pod.UID] == nil {
			continue
		}
		if drafts[p.Node] == nil {
			drafts[p.Node] = ledger.DeepCopy()
		}
		grants.Commit(drafts[p.Node], func(uid types.UID) bool { return uid == p.Pod.UID })
	}
	nodes := slices.Sorted(maps.Keys(drafts))
	if err := b.All(len(nodes), func(i int) error { return b.Write(ctx, drafts[nodes[i]]) }); err != nil {
		return err
	}
	// Another leader may have taken back what some of them had while the others' was
	// committed: then no pod is ungated.
	for _, p := range members {
		if ledger := b.Cache.Index.Ledger(p.Node); ledger == nil || grants.Placement(ledger, p.Pod.UID) == nil {
			return queue.ErrAgain
		}
	}
	return nil
}
