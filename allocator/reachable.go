// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// strandedGrace is how long a pod that is bound may be kept from starting by an agent that
// is away before the pod is replaced: long enough for an agent that is restarted or updated.
const strandedGrace = 2 * time.Minute

// agentChanged has a node's ledger looked at. The caller holds mu.
func (a *Allocator) agentChanged(node string) {
	if node != "" {
		a.enqueue(item{node: node})
	}
}

// markReachable has the ledger's condition AgentReachable say what is known of the agent's
// pod. It is the one part of a ledger's status that the allocator writes, and it is written
// when it changes: the message is from then.
func (a *Allocator) markReachable(ctx context.Context, known *v1alpha1.SliceLedger) error {
	if a.Agents == nil || known.DeletionTimestamp != nil || known.Status.Readiness() == nil {
		return nil // of an agent that has not reported there is nothing to doubt
	}
	now := a.Agents.Condition(known.Name)
	was := meta.FindStatusCondition(known.Status.Conditions, now.Type)
	if was != nil && was.Status == now.Status && was.Reason == now.Reason {
		return nil
	}
	now.LastTransitionTime = metav1.NewTime(a.Clock.Now())
	ledger := known.DeepCopy()
	meta.SetStatusCondition(&ledger.Status.Conditions, now)
	err := a.Client.Status().Update(ctx, ledger, fieldOwner)
	switch {
	case err == nil:
		a.Log.Info("the node agent's reachability has changed", "node", known.Name, "status", now.Status, "reason", now.Reason, "note", now.Message)
		a.SetLedger(ledger)
		return nil
	case apierrors.IsConflict(err):
		// The agent has written, or another leader.
		if err := a.refresh(ctx, known.Name); err != nil {
			return err
		}
		return errAgain
	case apierrors.IsNotFound(err):
		return a.refresh(ctx, known.Name)
	default:
		return fmt.Errorf("writing condition %s of ledger %s: %w", now.Type, known.Name, err)
	}
}

// replaceStranded deletes the pods that are bound to a node and cannot start, for as long as
// strandedGrace, because its agent is away, so that their controllers make new ones, which
// are placed elsewhere. A pod without a controller is its owner's to delete: an event says
// so. The slices stay until the agent is back and says that nothing uses them. known are
// pods with slices there.
func (a *Allocator) replaceStranded(ctx context.Context, node string, known map[types.UID]*corev1.Pod) error {
	ledger := a.index.Ledger(node)
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
		if left := strandedGrace - a.Clock.Now().Sub(since); left > 0 {
			a.mu.Lock()
			a.enqueueAfter(item{node: node}, left)
			a.mu.Unlock()
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
		if err := a.tellOnce(ctx, pod, corev1.EventTypeWarning, reasonAgentAway, text, fmt.Sprint(reasonAgentAway, since.Unix())); err != nil {
			return err
		}
		if !controlled {
			continue
		}
		if err := a.deleteAsSeen(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}
