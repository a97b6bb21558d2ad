// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// refusedGrace is how long the scheduler may refuse a placed pod before the pod
// is given up: long enough for a node that is just being restarted.
const refusedGrace = 30 * time.Second

// refusal is a placed pod that the scheduler does not bind.
type refusal struct {
	since time.Time
	// told is true once there was an event about it.
	told bool
}

// follow looks after a pod that left the gate.
func (a *Allocator) follow(ctx context.Context, pod *corev1.Pod) error {
	a.mu.Lock()
	for _, node := range a.index.Holders(pod.UID) {
		if node != home(pod) {
			a.enqueue(item{node: node})
		}
	}
	if stuck(pod) {
		a.enqueue(item{node: pod.Spec.NodeName})
	}
	over := a.overGrace(pod)
	a.mu.Unlock()
	if over {
		return a.giveUp(ctx, pod)
	}
	return nil
}

// overGrace tells whether the scheduler refuses the pod for too long, and has it
// looked at again when that will be. The caller holds mu.
func (a *Allocator) overGrace(pod *corev1.Pod) bool {
	if !refused(pod) {
		delete(a.refusals, pod.UID)
		return false
	}
	now := a.Clock.Now()
	r := a.refusals[pod.UID]
	if r == nil {
		// The condition's own time is of no use: it does not change when a gated
		// pod becomes an unschedulable one.
		r = &refusal{since: now}
		a.refusals[pod.UID] = r
	}
	if wait := refusedGrace - now.Sub(r.since); wait > 0 {
		a.enqueueAfter(item{pod: keyOf(pod)}, wait)
		return false
	}
	return true
}

// firstTime tells whether the pod's owner has not been told yet.
func (a *Allocator) firstTime(pod *corev1.Pod) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.refusals[pod.UID]
	first := r != nil && !r.told
	if first {
		r.told = true
	}
	return first
}

// giveUp ends a placement that came out wrong: the node cannot take the pod after
// all, and a pod cannot be gated again. A pod with a controller is deleted; its
// controller makes a new one, and the deletion of an unbound pod releases its
// slices. Any other pod keeps its place and its owner is told.
func (a *Allocator) giveUp(ctx context.Context, pod *corev1.Pod) error {
	controlled := metav1.GetControllerOf(pod) != nil
	if a.firstTime(pod) {
		pinRefusals.Inc()
		remedy := "the placement of a pod cannot be changed: free what it lacks on that node, or delete the pod and create it again"
		if controlled {
			remedy = "it is deleted, so that its controller creates it again"
		}
		a.tell(pod, corev1.EventTypeWarning, reasonPinRefused,
			fmt.Sprintf("placed on node %s, but the scheduler refuses it there; %s", home(pod), remedy))
	}
	if !controlled {
		return nil
	}
	// Only the pod as it was seen: one that was bound meanwhile stays.
	err := a.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
