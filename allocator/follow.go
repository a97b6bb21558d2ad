// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/ledgerspec"
	"vernier.dev/vernier/allocator/podstate"
)

// Both count from when the present leader first saw the refusal.
const (
	// refusedGrace is how long the scheduler may refuse a placed pod before the pod
	// is given up: long enough for a node that is just being restarted.
	refusedGrace = 30 * time.Second
	// refusedHold is how long a pod without a controller keeps its slices all the
	// same: its owner can uncordon the node meanwhile, or make room on it.
	refusedHold = 10 * time.Minute
)

// refusal is a placed pod that the scheduler does not bind.
type refusal struct {
	since time.Time
	// ignored: no scheduler has said so.
	ignored bool
	// told is true once there was an event about it.
	told bool
}

// follow looks after a pod that left the gate.
func (a *Allocator) follow(ctx context.Context, pod *corev1.Pod) error {
	a.mu.Lock()
	for _, node := range a.index.Holders(pod.UID) {
		if node != podstate.TargetNode(pod) {
			a.enqueue(item{node: node})
		}
	}
	if podstate.CreateFailed(pod) {
		a.enqueue(item{node: pod.Spec.NodeName})
	}
	since := a.refusedFor(pod)
	a.mu.Unlock()
	if since < refusedGrace {
		return nil
	}
	if podstate.Unclaimed(pod) {
		a.tellIgnored(pod)
		return nil
	}
	if err := a.preemptedInVain(ctx, pod); err != nil {
		return err
	}
	if metav1.GetControllerOfNoCopy(pod) != nil {
		return a.giveUp(ctx, pod)
	}
	return a.hold(ctx, pod, since)
}

// toFollow tells whether there is anything for follow to do. The caller holds mu.
func (a *Allocator) toFollow(pod *corev1.Pod) bool {
	return podstate.CreateFailed(pod) || podstate.Unschedulable(pod) || podstate.Unclaimed(pod) || a.refusals[pod.UID] != nil ||
		slices.ContainsFunc(a.index.Holders(pod.UID), func(node string) bool { return node != podstate.TargetNode(pod) })
}

// refusedFor is how long the scheduler has refused or ignored the pod, zero when it does not.
// The pod is looked at again when that matters. The caller holds mu.
func (a *Allocator) refusedFor(pod *corev1.Pod) time.Duration {
	ignored := podstate.Unclaimed(pod)
	if !podstate.Unschedulable(pod) && !ignored {
		delete(a.refusals, pod.UID)
		return 0
	}
	now := a.Clock.Now()
	r := a.refusals[pod.UID]
	if r == nil || r.ignored != ignored {
		// The condition's own time is of no use: it does not change when a gated
		// pod becomes an unschedulable one.
		r = &refusal{since: now, ignored: ignored}
		a.refusals[pod.UID] = r
	}
	since := now.Sub(r.since)
	for _, limit := range []time.Duration{refusedGrace, refusedHold} {
		if since < limit {
			a.enqueueAfter(item{pod: podstate.KeyOf(pod)}, limit-since)
			break
		}
	}
	return since
}

// tellRefused tells the pod's owner, once, what becomes of it.
func (a *Allocator) tellRefused(pod *corev1.Pod, remedy string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.refusals[pod.UID]; r != nil && !r.told {
		r.told = true
		pinRefusals.Inc()
		a.tell(pod, corev1.EventTypeWarning, reasonPinRefused,
			fmt.Sprintf("placed on node %s, but the scheduler refuses it there; %s", podstate.TargetNode(pod), remedy))
	}
}

// tellIgnored tells the pod's owner, once, that nobody binds it. It keeps its place: a
// scheduler that is only away binds it later.
func (a *Allocator) tellIgnored(pod *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.refusals[pod.UID]; r != nil && !r.told {
		r.told = true
		a.tell(pod, corev1.EventTypeWarning, reasonIgnored, fmt.Sprintf(
			"placed on node %s, and no scheduler %q has looked at it for %v: start that scheduler, or delete the pod and create it with schedulerName %s; it keeps its slices until then",
			podstate.TargetNode(pod), pod.Spec.SchedulerName, refusedGrace, corev1.DefaultSchedulerName))
	}
}

// giveUp ends a placement that came out wrong: the node cannot take the pod after
// all, and a pod cannot be gated again. Its controller makes a new one, and the
// deletion of an unbound pod releases its slices.
func (a *Allocator) giveUp(ctx context.Context, pod *corev1.Pod) error {
	a.tellRefused(pod, "it is deleted, so that its controller creates it again")
	return a.deleteAsSeen(ctx, pod)
}

// deleteAsSeen deletes only the pod as it was seen: one that was bound since, or
// started, stays.
func (a *Allocator) deleteAsSeen(ctx context.Context, pod *corev1.Pod) error {
	err := a.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// hold does the same for a pod that nobody would make again: it is its owner's to
// delete. Its slices are taken back when it has had them for long enough. If it is
// bound in the end, they are booked again where there is still room; else the node
// refuses its containers for want of a slice, and says what to do.
//
// The pod may be bound between the live read and the write, and be started with
// what is just being taken back. As with slices that were lost, the node then adds
// up what runs, and starts nothing beside it that would not fit.
func (a *Allocator) hold(ctx context.Context, pod *corev1.Pod, since time.Duration) error {
	a.tellRefused(pod, fmt.Sprintf("the placement of a pod cannot be changed: free what it lacks on that node within %v, or delete the pod and create it again", refusedHold))
	ledger := a.index.Ledger(podstate.TargetNode(pod))
	if since < refusedHold || ledger == nil || ledgerspec.Placement(ledger, pod.UID) == nil {
		return nil
	}
	live, err := a.live(ctx, pod)
	if err != nil || live == nil || !podstate.Unschedulable(live) {
		return err
	}
	if err := a.release(ctx, ledger, func(uid types.UID) bool { return uid == pod.UID }); err != nil {
		return err
	}
	a.tell(pod, corev1.EventTypeWarning, reasonPinRefused,
		fmt.Sprintf("the scheduler refused it on node %s for %v: its slices are given back; delete the pod and create it again", podstate.TargetNode(pod), refusedHold))
	return nil
}
