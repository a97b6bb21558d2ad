// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// reconcilePod looks at one pod of ours. What it returns is on its way in the round.
func (a *Allocator) reconcilePod(ctx context.Context, r *binding.Round, key types.NamespacedName) (*binding.Pending, error) {
	pod := a.cache.Pod(key)
	switch {
	case pod == nil:
		return nil, nil
	case podstate.Ready(pod) && !a.groups.Alone(pod):
		a.groups.Merge(pod)
		a.queue.AddPod(pod)
		return nil, nil
	case podstate.Ready(pod) && a.queue.Blocked(pod):
		return nil, nil
	case podstate.Ready(pod):
		a.startPlacing(r, pod)
		if refused := a.binder.Refused(pod); refused != "" {
			return nil, a.holdNothing(ctx, []*corev1.Pod{pod}, notify.ReasonWriteRefused, "refused write", refused+". "+binding.RetryText)
		}
		return a.place(ctx, r, pod)
	case podstate.WaitsForOtherGates(pod):
		return nil, nil
	default:
		return nil, a.bindwatch.Check(ctx, pod)
	}
}

// place decides which slices a gated pod gets, or finds those that it has.
func (a *Allocator) place(ctx context.Context, r *binding.Round, pod *corev1.Pod) (*binding.Pending, error) {
	demand, invalid := a.asksOf(pod)
	granted := demand
	if errors.Is(invalid, placement.ErrNoClass) {
		// What it was granted when there was the class it keeps.
		var err error
		if granted, err = placement.GrantedDemand(podrequest.Of(pod)); err != nil {
			invalid = err
		}
	}
	if invalid != nil && !errors.Is(invalid, placement.ErrNoClass) {
		a.markInvalid(pod, invalid)
		return nil, nil
	}
	p, done, err := a.adopt(ctx, pod, granted.Shares)
	if done || err != nil {
		return p, err
	}
	if invalid != nil {
		a.markInvalid(pod, invalid)
		return nil, nil
	}
	chosen, why, err := a.scheduler.Schedule(ctx, scheduling.Request{Pod: pod, Demand: demand})
	switch {
	case err != nil:
		return nil, err
	case why != nil && !why.Known:
		a.queue.MarkUnschedulable([]*corev1.Pod{pod}, why.Refused(), why.Cause(), why.String())
	}
	if why != nil && why.Avoided {
		return nil, nil
	}
	if why != nil || chosen == nil {
		a.short = &preemption.Waiter{Item: queue.Item{Pod: podstate.KeyOf(pod)}, Pods: []scheduling.Request{{Pod: pod, Demand: demand}}, Need: 1}
		return nil, nil
	}
	return r.Grant(chosen)
}

// asksOf reads what the pod asks for. Errors name the field and the remedy.
func (a *Allocator) asksOf(pod *corev1.Pod) (*placement.Demand, error) {
	// Beyond the bounds the cache has no more of the pod than this.
	if text := pod.Annotations[podstate.AnnotationTrimmed]; text != "" {
		return nil, errors.New(text)
	}
	if err := v1alpha1.CheckSchedulingTerms(&pod.Spec); err != nil {
		return nil, err
	}
	return placement.DemandOf(podrequest.Of(pod), a.classes)
}

// markInvalid notes that a pod cannot be placed as it is. One whose class there is not waits for
// that: the class may have been made a moment ago, and admission been the first to see it.
func (a *Allocator) markInvalid(pod *corev1.Pod, err error) {
	if errors.Is(err, placement.ErrNoClass) {
		a.queue.MarkElsewhere([]*corev1.Pod{pod}, notify.ReasonWaiting, "no class", err.Error())
		return
	}
	a.queue.MarkInvalid(pod, err)
}

// adopt finishes what an allocator began before it died between its writes: a gated
// pod that has slices gets the placement that the ledger says.
func (a *Allocator) adopt(ctx context.Context, pod *corev1.Pod, shares map[string]v1alpha1.Share) (p *binding.Pending, done bool, err error) {
	node, err := a.grantedNode(ctx, pod, shares)
	switch {
	case errors.Is(err, binding.ErrGone):
		return nil, true, nil
	case err != nil || node == "":
		return nil, false, err
	}
	p = &binding.Pending{Pod: pod, Node: node}
	a.Assume(pod, node)
	// Its gang held them for it, and it needs the others no longer.
	if err := a.binder.Commit(ctx, []*binding.Pending{p}); err != nil {
		return nil, false, err
	}
	return p, true, nil
}

// grantedNode is the node where a gated pod has the slices that it asks for and where the
// scheduler accepts it, empty when there is none. Others were written for what the
// pod was before, or by somebody who edits ledgers: they go back.
func (a *Allocator) grantedNode(ctx context.Context, pod *corev1.Pod, shares map[string]v1alpha1.Share) (granted string, err error) {
	for _, node := range a.cache.Index.Holders(pod.UID) {
		good := false
		if ledger := a.cache.Index.Ledger(node); ledger != nil && granted == "" && grants.Serves(ledger, pod.UID, shares) {
			if good, err = a.accepted(ctx, pod, node); err != nil {
				return "", err
			}
		}
		if good {
			granted = node
		} else if err := a.binder.TakeBack(ctx, pod, node); err != nil {
			return "", err
		}
	}
	return granted, nil
}

// accepted reports whether the scheduler would take the pod on the node, or preempt for it
// there.
func (a *Allocator) accepted(ctx context.Context, pod *corev1.Pod, node string) (accepted bool, err error) {
	// One that waits for its node is counted there, and would be in its own way.
	err = a.cache.Without(pod, func() error {
		cycle, err := a.Filters.Start(ctx, pod)
		if err != nil {
			return err
		}
		against, err := cycle.Refusals(ctx, node)
		if accepted = len(against) == 0; accepted || err != nil || !a.Filters.MayPreempt(pod) || !a.preemption.Due(pod) {
			return err
		}
		if _, accepted, err = cycle.Preempts(ctx, node, a.cache.Priorities.MayEnd(pod)); accepted {
			a.preemption.Nominate(pod)
		}
		return err
	})
	return accepted && err == nil, err
}

// startPlacing notes that the pod is decided on from now on, until the round ends.
func (a *Allocator) startPlacing(r *binding.Round, pod *corev1.Pod) {
	r.Begin(pod)
	a.preemption.Denominate(pod)
}
