// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// PlacePod decides which slices a gated pod gets that is placed alone, or finds those that it has.
// These are on their way in the round. Without room it returns the pod as one who waits for it.
func (s *Scheduler) PlacePod(ctx context.Context, r *binding.Round, pod *corev1.Pod) (*binding.Pending, *Waiter, error) {
	s.begin(r, pod)
	if refused := s.Binder.Refused(pod); refused != "" {
		return nil, nil, s.holdNothing(ctx, []*corev1.Pod{pod}, notify.ReasonWriteRefused, cause.WriteRefused, refused+". "+binding.RetryText)
	}
	asks, invalid := RequestOf(pod, s.Classes)
	granted := asks.Demand
	waitsForClass := errors.Is(invalid, placement.ErrNoClass)
	if waitsForClass {
		// What it was granted when there was the class it keeps.
		var err error
		if granted, err = placement.GrantedDemand(podrequest.Of(pod)); err != nil {
			invalid, waitsForClass = err, false
		}
	}
	if invalid != nil && !waitsForClass {
		s.markInvalid(pod, invalid)
		return nil, nil, nil
	}
	p, done, err := s.adopt(ctx, pod, granted.Shares)
	if done || err != nil {
		return p, nil, err
	}
	if invalid != nil {
		s.markInvalid(pod, invalid)
		return nil, nil, nil
	}
	chosen, why, err := s.Schedule(ctx, asks)
	if err != nil {
		return nil, nil, err
	}
	if why == nil {
		p, err = r.Grant(chosen)
		return p, nil, err
	}
	if !why.Known {
		s.Queue.MarkUnschedulable([]*corev1.Pod{pod}, why.Refused > 0, notify.Why{Cause: why.Cause(), Key: why.Key(), Text: why.String()})
	}
	if why.Avoided {
		return nil, nil, nil
	}
	return nil, &Waiter{Item: queue.Item{Pod: podstate.KeyOf(pod)}, Pods: []Request{asks}, Need: 1}, nil
}

// RequestOf is the pod with what it asks for. Errors name the field and the remedy.
func RequestOf(pod *corev1.Pod, known *classes.Set) (Request, error) {
	// Beyond the bounds the cache has no more of the pod than this.
	if text := pod.Annotations[podstate.AnnotationTrimmed]; text != "" {
		return Request{}, errors.New(text)
	}
	if err := v1alpha1.CheckSchedulingTerms(&pod.Spec); err != nil {
		return Request{}, err
	}
	demand, err := placement.DemandOf(podrequest.Of(pod), known)
	return Request{Pod: pod, Demand: demand}, err
}

// markInvalid notes that a pod cannot be placed as it is. One whose class there is not waits for
// that: the class may have been made a moment ago, and admission been the first to see it.
func (s *Scheduler) markInvalid(pod *corev1.Pod, err error) {
	if errors.Is(err, placement.ErrNoClass) {
		s.Queue.MarkElsewhere([]*corev1.Pod{pod}, notify.ReasonWaiting, notify.Why{Cause: cause.NoClass, Key: string(cause.NoClass), Text: err.Error()})
		return
	}
	s.Queue.MarkInvalid(pod, err)
}

// adopt finishes what an allocator began before it died between its writes: a gated
// pod that has slices gets the placement that the ledger says.
func (s *Scheduler) adopt(ctx context.Context, pod *corev1.Pod, shares map[string]v1alpha1.Share) (p *binding.Pending, done bool, err error) {
	node, err := s.grantedNode(ctx, pod, shares)
	switch {
	case errors.Is(err, binding.ErrGone):
		return nil, true, nil
	case err != nil || node == "":
		return nil, false, err
	}
	p = &binding.Pending{Pod: pod, Node: node}
	s.Binder.Handlers.Assume(pod, node)
	// Its gang held them for it, and it needs the others no longer.
	if err := s.Binder.Commit(ctx, []*binding.Pending{p}); err != nil {
		return nil, false, err
	}
	return p, true, nil
}

// grantedNode is the node where a gated pod has the slices that it asks for and where the
// scheduler accepts it, empty when there is none. Others were written for what the
// pod was before, or by somebody who edits ledgers: they go back.
func (s *Scheduler) grantedNode(ctx context.Context, pod *corev1.Pod, shares map[string]v1alpha1.Share) (granted string, err error) {
	for _, node := range s.Cache.Index.Holders(pod.UID) {
		good := false
		if ledger := s.Cache.Index.Ledger(node); ledger != nil && granted == "" && grants.Serves(ledger, pod.UID, shares) {
			if good, err = s.accepted(ctx, pod, node); err != nil {
				return "", err
			}
		}
		if good {
			granted = node
		} else if err := s.Binder.TakeBack(ctx, pod, node); err != nil {
			return "", err
		}
	}
	return granted, nil
}

// accepted reports whether the scheduler would take the pod on the node, or preempt for it
// there.
func (s *Scheduler) accepted(ctx context.Context, pod *corev1.Pod, node string) (accepted bool, err error) {
	// One that waits for its node is counted there, and would be in its own way.
	err = s.Cache.Without(pod, func() error {
		cycle, err := s.Filters.Start(ctx, pod)
		if err != nil {
			return err
		}
		against, err := cycle.Refusals(ctx, node)
		if accepted = len(against) == 0; accepted || err != nil || !s.Filters.MayPreempt(pod) || !s.PostFilter.Due(pod) {
			return err
		}
		if _, accepted, err = cycle.Preempts(ctx, node, s.Cache.Priorities.MayEnd(pod)); accepted {
			s.PostFilter.Nominate(pod)
		}
		return err
	})
	return accepted && err == nil, err
}

// begin notes that the pod is decided on from now on, until the round ends.
func (s *Scheduler) begin(r *binding.Round, pod *corev1.Pod) {
	r.Begin(pod)
	s.PostFilter.Denominate(pod)
}
