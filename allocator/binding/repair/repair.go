// SPDX-License-Identifier: Apache-2.0

// Package repair owns the reconciliation of ledgers with their pods and with what the node
// agents say. Slices are released, lost, or on devices that failed. It keeps nothing;
// what is to be written follows from a ledger and its pods.
package repair

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/agents"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/tides"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/refusal"
	"vernier.dev/vernier/api/v1alpha1"
)

// Reconciler reconciles ledgers. Different ones may be reconciled concurrently.
type Reconciler struct {
	Cache  *cache.Cache
	Queue  *queue.Queue
	Binder *binding.Binder
	Notify *notify.Notifier
	// Classes are the GPUClasses that there are; nil is none.
	Classes *classes.Set
	// Agents are the node agents' pods. Nil where agents do not run in pods: then only what
	// they say themselves is known of them.
	Agents *agents.Agents
	// Tides are those that there are; nil is none.
	Tides *tides.Set
	// Overcommit is how much of a node's compute is promised to burstable containers, 0 for all of it. It is
	// false where the node is not known. Nil changes nothing.
	Overcommit func(node string) (v1alpha1.Percent, bool)
	// NodeLabels are a node's; false where it is not known. Nil labels no nodes.
	NodeLabels func(node string) (map[string]string, bool)
	// IdleAfter is how long a pod does no work on its GPUs before its condition says so; 0 never says it.
	IdleAfter time.Duration
	Clock     clock.PassiveClock
	Log       logr.Logger
}

// Reconcile brings a node's ledger and its pods in line:
//   - it writes whether the node's agent is reachable;
//   - it takes back, in one write, slices that no container will use again or that were held
//     for too long;
//   - it reassigns slices whose device failed before they were used, and restores lost ones;
//   - it replaces pods that cannot start because the agent is away;
//   - it sets the condition of pods on failed devices;
//   - it takes the next step of the resizes that pods ask for;
//   - it writes how much idle slices may have, and until when, and what is over-committed;
//   - it sets the conditions of pods on failed devices, and of idle ones;
//   - it evicts pods whose idle slices are gone or starve;
//   - it labels the node with its GPUs;
//   - it has gated pods with slices looked at.
//
// A slice of a pod that is not known is left alone. The watch may be
// behind, and if the pod is gone the node says so.
func (r *Reconciler) Reconcile(ctx context.Context, node string) error {
	ledger := r.Cache.Index.Ledger(node)
	if ledger == nil {
		return nil
	}
	if err := r.markReachable(ctx, ledger); err != nil {
		return err
	}
	ledger = r.Cache.Index.Ledger(node)
	if ledger == nil {
		return nil
	}
	known := r.Cache.Granted(ledger)
	late, next := expired(ledger, r.Clock.Now())
	if next > 0 {
		r.Queue.AddAfter(queue.Item{Node: node}, next)
	}
	drop := func(uid types.UID) bool {
		if slices.Contains(ledger.Status.Released, uid) || r.Cache.DeletedUnbound(uid) || late[uid] {
			return true
		}
		pod := known[uid]
		return pod != nil && (podstate.NeverRuns(pod) || podstate.TargetNode(pod) != "" && podstate.TargetNode(pod) != node)
	}
	// What is refused of a ledger keeps nothing else from being done.
	var refused error
	for _, do := range []func() error{
		func() error { return r.Binder.Release(ctx, ledger, drop) },
		func() error { return r.reassign(ctx, node) },
		func() error { return r.restore(ctx, node) },
		func() error { return r.replaceStranded(ctx, node, known) },
		func() error { return r.setHealth(ctx, node, known) },
		func() error { return r.resize(ctx, node) },
		func() error { return r.setTide(ctx, node) },
		func() error { return r.setOvercommit(ctx, node) },
		func() error { return r.setIdle(ctx, node, known) },
		func() error { return r.evictStarved(ctx, node, known) },
		func() error { return r.setLabels(ctx, node) }, // last: nothing depends on it
	} {
		if err := do(); refusal.Is(err) {
			refused = errors.Join(refused, err)
		} else if err != nil {
			return err
		}
	}
	for _, pod := range podstate.OldestFirst(known) {
		if podstate.Ready(pod) {
			r.Queue.AddPod(pod)
		}
	}
	return refused
}

// expired are the pods whose slices in a ledger are held past their time. next is how
// long it is until another hold ends, zero when there is none.
func expired(ledger *v1alpha1.SliceLedger, now time.Time) (pods map[types.UID]bool, next time.Duration) {
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
