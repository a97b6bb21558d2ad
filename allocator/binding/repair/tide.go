// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"

	"vernier.dev/vernier/allocator/queue"
)

// setTide has the ledger say how much idle slices may have there, and until when, where that is
// another than it says. The ledger is looked at again when it may be another.
func (r *Reconciler) setTide(ctx context.Context, node string) error {
	known := r.Cache.Index.Ledger(node)
	if r.Tides == nil || known == nil || known.DeletionTimestamp != nil {
		return nil
	}
	next, write, again := r.Tides.Next(node, known.Spec.Tide)
	if again > 0 {
		r.Queue.AddAfter(queue.Item{Node: node}, again)
	}
	if !write {
		return nil
	}
	ledger := known.DeepCopy()
	ledger.Spec.Tide = next
	if err := r.Binder.Write(ctx, ledger); err != nil {
		return err
	}
	core, mem := next.Allows(r.Clock.Now())
	r.Log.V(1).Info("Wrote the tide", "node", node, "core", core, "mem", mem, "until", next.EndsAt())
	return nil
}

// setOvercommit has the ledger say how much of its devices' compute is promised. Slices stay as they are.
func (r *Reconciler) setOvercommit(ctx context.Context, node string) error {
	known := r.Cache.Index.Ledger(node)
	if r.Overcommit == nil || known == nil || known.DeletionTimestamp != nil {
		return nil
	}
	core, is := r.Overcommit(node)
	if !is || core == known.Spec.OvercommitCore {
		return nil
	}
	ledger := known.DeepCopy()
	ledger.Spec.OvercommitCore = core
	return r.Binder.Write(ctx, ledger)
}
