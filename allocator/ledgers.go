// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/podstate"
)

// reconcileLedger says whether the node's agent is reachable. It takes back, in one write, the slices on the node that nobody
// will use again or that were held for too long, moves those whose device failed
// before they were used, puts back what was lost, replaces pods that cannot start because
// the agent is away, tells the pods on devices that failed, and has gated pods that hold slices finished.
//
// A slice of a pod that is not known is left alone: it may be the watch that is
// behind, and if the pod is gone the node says so.
func (a *Allocator) reconcileLedger(ctx context.Context, node string) error {
	ledger := a.index.Ledger(node)
	if ledger == nil {
		return nil
	}
	if err := a.markReachable(ctx, ledger); err != nil {
		return err
	}
	ledger = a.index.Ledger(node)
	if ledger == nil {
		return nil
	}
	known := a.granted(ledger)
	expired, next := a.expired(ledger)
	if next > 0 {
		a.mu.Lock()
		a.enqueueAfter(item{node: node}, next)
		a.mu.Unlock()
	}
	drop := func(uid types.UID) bool {
		if slices.Contains(ledger.Status.Released, uid) || a.ranNever(uid) || expired[uid] {
			return true
		}
		pod := known[uid]
		return pod != nil && (podstate.NeverRuns(pod) || podstate.TargetNode(pod) != "" && podstate.TargetNode(pod) != node)
	}
	if err := a.release(ctx, ledger, drop); err != nil {
		return err
	}
	if err := a.rehome(ctx, node); err != nil {
		return err
	}
	if err := a.rebook(ctx, node); err != nil {
		return err
	}
	if err := a.replaceStranded(ctx, node, known); err != nil {
		return err
	}
	if err := a.tellIllness(ctx, node, known); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, pod := range podstate.OldestFirst(known) {
		if podstate.Ready(pod) {
			a.enqueue(a.itemOf(pod))
		}
	}
	return nil
}

func (a *Allocator) ranNever(pod types.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.neverRan[pod]
}
