// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// strandedGrace is how long a pod that is bound may be kept from starting by an agent that
// is away before the pod is replaced: long enough for an agent that is restarted or updated.
const strandedGrace = 2 * time.Minute

// markReachable has the ledger's condition AgentReachable say what is known of the agent's
// pod. It is the one part of a ledger's status that the allocator writes, and it is written
// when it changes: the message is from then.
func (r *Reconciler) markReachable(ctx context.Context, known *v1alpha1.SliceLedger) error {
	if r.Agents == nil || known.DeletionTimestamp != nil || known.Status.Readiness() == nil {
		return nil // of an agent that has not reported there is nothing to doubt
	}
	now := r.Agents.Condition(known.Name)
	was := meta.FindStatusCondition(known.Status.Conditions, now.Type)
	if was != nil && was.Status == now.Status && was.Reason == now.Reason {
		return nil
	}
	now.LastTransitionTime = metav1.NewTime(r.Clock.Now())
	ledger := known.DeepCopy()
	meta.SetStatusCondition(&ledger.Status.Conditions, now)
	written, err := r.Binder.WriteStatus(ctx, ledger)
	if written {
		r.Log.Info("The node agent's reachability has changed", "node", known.Name, "status", now.Status, "reason", now.Reason, "note", now.Message)
	}
	return err
}

// replaceStranded deletes the pods that are bound to a node and cannot start, for as long as
// strandedGrace, because its agent is away, so that their controllers make new ones, which
// are placed elsewhere. A pod without a controller is its owner's to delete: an event says
// so. The slices stay until the agent is back and says that nothing uses them. known are
// pods with slices there.
func (r *Reconciler) replaceStranded(ctx context.Context, node string, known map[types.UID]*corev1.Pod) error {
	ledger := r.Cache.Index.Ledger(node)
	if ledger == nil {
		return nil
	}
	away := meta.FindStatusCondition(ledger.Status.Conditions, v1alpha1.ConditionAgentReachable)
	if away == nil || away.Status != metav1.ConditionFalse {
		return nil
	}
	for _, pod := range podstate.OldestFirst(known) {
		if pod.Spec.NodeName != node || !podstate.NeverStarted(pod) {
			continue
		}
		since := away.LastTransitionTime.Time
		if bound := podstate.BoundAt(pod); bound.After(since) {
			since = bound
		}
		if left := strandedGrace - r.Clock.Now().Sub(since); left > 0 {
			r.Queue.AddAfter(queue.Item{Node: node}, left)
			continue
		}
		text := fmt.Sprintf("it has not started on node %s for %v, since the node agent there is away (%s)", node, strandedGrace, away.Message)
		if said := podstate.WaitingMessage(pod); said != "" {
			text += "; the kubelet says: " + said
		}
		controlled := metav1.GetControllerOfNoCopy(pod) != nil
		if controlled {
			text += ". It is deleted, so that its controller creates it again"
		} else {
			text += ". It starts when the agent is back; delete it and create it again to have it placed on another node"
		}
		if err := r.Notify.Once(ctx, pod, corev1.EventTypeWarning, notify.ReasonAgentAway, text, fmt.Sprint(notify.ReasonAgentAway, since.Unix())); err != nil {
			return err
		}
		if !controlled {
			continue
		}
		if err := r.Binder.DeleteAsSeen(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}
