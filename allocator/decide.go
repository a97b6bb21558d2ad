// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/book"
	"vernier.dev/vernier/api/v1alpha1"
)

// reconcilePod looks at one pod of ours.
func (a *Allocator) reconcilePod(ctx context.Context, key types.NamespacedName) error {
	pod := a.pod(key)
	switch {
	case pod == nil:
		return nil
	case ready(pod):
		defer a.at(pod.UID)()
		return a.place(ctx, pod)
	case gated(pod) && !neverRuns(pod):
		return nil
	default:
		return a.follow(ctx, pod)
	}
}

// at notes which pod the worker is placing, so that its deletion meanwhile is not
// lost, and returns what ends that.
func (a *Allocator) at(pod types.UID) (done func()) {
	note := func(uid types.UID) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.placing = uid
		a.forgetNeverRan(pod)
	}
	note(pod)
	return func() { note("") }
}

// place gives a gated pod its slices and lets it go.
func (a *Allocator) place(ctx context.Context, pod *corev1.Pod) error {
	demand, shares, err := demandOf(pod)
	if err != nil {
		a.refuse(pod, err)
		return nil
	}
	adopted, err := a.adopt(ctx, pod, shares)
	if adopted || err != nil {
		return err
	}
	choices, err := a.decide(ctx, []ask{{pod, demand}})
	if len(choices) == 0 || err != nil {
		return err
	}
	if err := a.grant(ctx, choices); err != nil {
		return err
	}
	return a.ungate(ctx, pod, choices[0].plan.Node)
}

// adopt finishes what an allocator began before it died between its two writes:
// a gated pod that holds slices gets the placement that the ledger says. Where
// that is not what the pod asks for, or the scheduler would refuse the node, the
// ledger was edited or the pod changed; those slices go back.
func (a *Allocator) adopt(ctx context.Context, pod *corev1.Pod, shares *v1alpha1.Shares) (bool, error) {
	for _, node := range a.index.Holders(pod.UID) {
		ledger := a.index.Ledger(node)
		if ledger == nil {
			continue
		}
		good := book.Serves(ledger, pod.UID, shares)
		if good {
			cycle, err := a.Filters.Start(ctx, pod)
			if err != nil {
				return false, err
			}
			against, err := cycle.Refusals(ctx, node)
			if err != nil {
				return false, err
			}
			good = len(against) == 0
		}
		if good {
			return true, a.ungate(ctx, pod, node)
		}
		// Our watch may be behind, and another leader have let the pod go meanwhile.
		live, err := a.live(ctx, pod)
		switch {
		case err != nil:
			return false, err
		case live == nil:
			return true, nil // the watch will show it
		case live.ResourceVersion != pod.ResourceVersion:
			return false, errAgain
		}
		if err := a.release(ctx, ledger, func(uid types.UID) bool { return uid == pod.UID }); err != nil {
			return false, err
		}
	}
	return false, nil
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
