// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/resizing"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// resize takes the next step of all resizes on a node, in one write, and sets the conditions of
// their pods. The oldest pod comes first. The placement annotation follows once that is in force:
// lost slices are restored by it.
func (r *Reconciler) resize(ctx context.Context, node string) error {
	known := r.Cache.Index.Ledger(node)
	if known == nil {
		return nil
	}
	ledger, pending := known, resizing.Pending(known)
	steps := map[*corev1.Pod]resizing.Next{}
	var pods []*corev1.Pod
	for _, pod := range podstate.OldestFirst(r.Cache.Granted(known)) {
		if pod.Spec.NodeName != node || podstate.Terminal(pod) || !resizing.Concerns(pod) && !pending[pod.UID] {
			continue
		}
		step := resizing.Step(pod, ledger)
		if step.Ledger != nil {
			ledger = step.Ledger
		}
		pods, steps[pod] = append(pods, pod), step
	}
	if ledger != known {
		if err := r.Binder.Replace(ctx, known, ledger); err != nil {
			return err
		}
	}
	pending = resizing.Pending(ledger)
	for _, pod := range pods {
		if !pending[pod.UID] {
			if err := r.setPlacement(ctx, pod, ledger); err != nil {
				return err
			}
		}
		if err := r.setResize(ctx, pod, steps[pod]); err != nil {
			return err
		}
	}
	return nil
}

// setResize sets the condition of a pod's resize, with an event where one has ended.
func (r *Reconciler) setResize(ctx context.Context, pod *corev1.Pod, step resizing.Next) error {
	was := resizing.ConditionOf(pod)
	if step.Reason == "" || was != nil && was.Reason == step.Reason && was.Message == step.Message {
		return nil
	}
	now := corev1.PodCondition{
		Type: v1alpha1.PodConditionResize, Status: corev1.ConditionTrue, Reason: step.Reason, Message: step.Message,
		LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	}
	if step.Reason == resizing.ReasonDone {
		now.Status = corev1.ConditionFalse
	}
	if was != nil && was.Status == now.Status {
		now.LastTransitionTime = was.LastTransitionTime
	}
	if err := r.Binder.SetCondition(ctx, pod, now); err != nil {
		return err
	}
	switch step.Reason {
	case resizing.ReasonDone:
		r.Notify.Emit(pod, corev1.EventTypeNormal, notify.ReasonResized, step.Message)
	case resizing.ReasonInfeasible:
		r.Notify.Emit(pod, corev1.EventTypeWarning, notify.ReasonInfeasible, step.Message)
	}
	return nil
}

// setPlacement writes what the pod's slices are now.
func (r *Reconciler) setPlacement(ctx context.Context, pod *corev1.Pod, ledger *v1alpha1.SliceLedger) error {
	placed := grants.PlacementOf(ledger, pod)
	if placed == nil {
		return nil
	}
	was, err := podrequest.PlacementOf(pod)
	if err == nil {
		placed.Topology = was.Topology // what was achieved when it was placed
	}
	text, broken := placed.Encode()
	if broken != nil || err == nil && equality.Semantic.DeepEqual(was, placed) {
		return broken
	}
	return r.Binder.SetPlacement(ctx, pod, text)
}
