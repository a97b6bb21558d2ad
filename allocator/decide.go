// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/book"
	"vernier.dev/vernier/api/v1alpha1"
)

// reconcilePod looks at one pod of ours. What it returns is on its way in the round.
func (a *Allocator) reconcilePod(ctx context.Context, r *round, key types.NamespacedName) (*placing, error) {
	pod := a.pod(key)
	switch {
	case pod == nil:
		return nil, nil
	case ready(pod):
		r.begin(pod)
		return a.place(ctx, r, pod)
	case gated(pod) && !neverRuns(pod):
		return nil, nil
	default:
		return nil, a.follow(ctx, pod)
	}
}

// place decides which slices a gated pod gets, or finds those that it has.
func (a *Allocator) place(ctx context.Context, r *round, pod *corev1.Pod) (*placing, error) {
	demand, shares, err := demandOf(pod)
	if err != nil {
		a.refuse(pod, err)
		return nil, nil
	}
	p, done, err := a.adopt(ctx, pod, shares)
	if done || err != nil {
		return p, err
	}
	choices, err := a.decide(ctx, []ask{{pod, demand}})
	if len(choices) == 0 || err != nil {
		return nil, err
	}
	return r.grant(choices[0])
}

// adopt finishes what an allocator began before it died between its two writes:
// a gated pod that holds slices gets the placement that the ledger says. Where
// that is not what the pod asks for, or the scheduler would refuse the node, the
// ledger was edited or the pod changed; those slices go back.
func (a *Allocator) adopt(ctx context.Context, pod *corev1.Pod, shares *v1alpha1.Shares) (p *placing, done bool, err error) {
	for _, node := range a.index.Holders(pod.UID) {
		ledger := a.index.Ledger(node)
		if ledger == nil {
			continue
		}
		good := book.Serves(ledger, pod.UID, shares)
		if good {
			cycle, err := a.Filters.Start(ctx, pod)
			if err != nil {
				return nil, false, err
			}
			against, err := cycle.Refusals(ctx, node)
			if err != nil {
				return nil, false, err
			}
			good = len(against) == 0
		}
		if good {
			p := &placing{pod: pod, node: node}
			a.assume(p)
			return p, true, nil
		}
		// Our watch may be behind, and another leader have let the pod go meanwhile.
		live, err := a.live(ctx, pod)
		switch {
		case err != nil:
			return nil, false, err
		case live == nil:
			return nil, true, nil // the watch will show it
		case live.ResourceVersion != pod.ResourceVersion:
			return nil, false, errAgain
		}
		if err := a.release(ctx, ledger, func(uid types.UID) bool { return uid == pod.UID }); err != nil {
			return nil, false, err
		}
	}
	return nil, false, nil
}

// refuse tells why a pod can never be placed as it is. It stays gated: what it
// says may be changed, and then it is looked at again.
func (a *Allocator) refuse(pod *corev1.Pod, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := keyOf(pod)
	if w := a.waiting[key]; w.told != err.Error() {
		a.waiting[key] = waiter{cause: "invalid", told: err.Error(), at: a.Clock.Now()}
		waitingPods.Set(float64(len(a.waiting)))
		a.tell(pod, corev1.EventTypeWarning, reasonInvalid, err.Error())
	}
}
