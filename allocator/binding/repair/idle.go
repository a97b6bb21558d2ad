// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// Reasons of the condition GPUIdle.
const (
	reasonNoWork     = "NoWork"
	reasonWorks      = "Works"
	reasonUnmeasured = "Unmeasured"
)

// setIdle gives the pods of a node a condition while all of their slices that run are idle for
// IdleAfter, with an event at its begin. It takes the condition back when one works. Of a node whose
// agent is away for longer than strandedGrace nothing is known. Pods that never were idle for so long have
// none. known are pods with slices there.
func (r *Reconciler) setIdle(ctx context.Context, node string, known map[types.UID]*corev1.Pod) error {
	ledger := r.Cache.Index.Ledger(node)
	if ledger == nil {
		return nil
	}
	unknown := r.IdleAfter == 0
	if ready := ledger.Status.Readiness(); !ledger.Status.TakesSlices() && !unknown {
		if ready == nil {
			return nil
		}
		left := strandedGrace - r.Clock.Now().Sub(ready.LastTransitionTime.Time)
		if left > 0 {
			r.Queue.AddAfter(queue.Item{Node: node}, left)
			return nil
		}
		unknown = true
	}
	idle := idleSince(ledger)
	for _, pod := range podstate.OldestFirst(known) {
		if pod.Spec.NodeName != node || pod.DeletionTimestamp != nil || podstate.Terminal(pod) {
			continue
		}
		since := idle[pod.UID]
		if unknown {
			since = nil
		}
		if since != nil {
			if left := r.IdleAfter - r.Clock.Now().Sub(since.Time); left > 0 {
				r.Queue.AddAfter(queue.Item{Node: node}, left)
				since = nil
			}
		}
		if err := r.setPodIdle(ctx, pod, since, unknown); err != nil {
			return err
		}
	}
	return nil
}

// idleSince are since when all slices of a pod that run are idle, of pods of which all are.
func idleSince(ledger *v1alpha1.SliceLedger) map[types.UID]*metav1.Time {
	idle := map[types.UID]*metav1.Time{}
	for i := range ledger.Status.Slices {
		s := &ledger.Status.Slices[i]
		switch since, seen := idle[s.Pod]; {
		case seen && since == nil:
		case !seen || s.IdleSince == nil || since.Before(s.IdleSince):
			idle[s.Pod] = s.IdleSince
		}
	}
	return idle
}

// setPodIdle sets the pod's condition: idle since, or not where that is nil.
func (r *Reconciler) setPodIdle(ctx context.Context, pod *corev1.Pod, since *metav1.Time, unknown bool) error {
	was := conditionOf(pod, v1alpha1.PodConditionGPUIdle)
	now := corev1.PodCondition{Type: v1alpha1.PodConditionGPUIdle}
	switch {
	case since != nil:
		now.Status, now.Reason, now.LastTransitionTime = corev1.ConditionTrue, reasonNoWork, *since
		now.Message = "no work on its GPUs since " + since.UTC().Format(time.RFC3339)
	case was == nil:
		return nil
	case unknown:
		now.Status, now.Reason, now.Message = corev1.ConditionUnknown, reasonUnmeasured, "its work is not measured now"
	default:
		now.Status, now.Reason, now.Message = corev1.ConditionFalse, reasonWorks, "it works on its GPUs again, or what it does there is not known"
	}
	if was != nil && was.Status == now.Status && (since == nil || was.LastTransitionTime.Equal(since)) {
		return nil
	}
	if since == nil {
		now.LastTransitionTime = metav1.NewTime(r.Clock.Now())
		return r.Binder.SetCondition(ctx, pod, now)
	}
	text := fmt.Sprintf("%s. Its slices are kept; delete it if it is not needed", now.Message)
	if err := r.Notify.Once(ctx, pod, corev1.EventTypeNormal, notify.ReasonIdle, text, fmt.Sprint(notify.ReasonIdle, since.Unix())); err != nil {
		return err
	}
	return r.Binder.SetCondition(ctx, pod, now)
}
