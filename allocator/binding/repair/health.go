// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// setHealth gives the pods of a node a condition while a device or an instance that
// they have slices of is ill, or their devices do not have the topology that they require. It
// takes it back when that is over, and says an event before each change of it. The condition is
// what remembers, and the event's name says which change it is of: another leader leaves none
// out and says nothing twice. Pods that were never concerned have none.
//
// A node that is not ready says nothing about its devices; what it said last stays.
// known are pods with slices there.
func (r *Reconciler) setHealth(ctx context.Context, node string, known map[types.UID]*corev1.Pod) error {
	ledger := r.Cache.Index.Ledger(node)
	if ledger == nil || !ledger.Status.TakesSlices() {
		return nil
	}
	ill := illnesses(ledger)
	for _, pod := range podstate.OldestFirst(known) {
		if pod.Spec.NodeName != node || pod.DeletionTimestamp != nil || podstate.Terminal(pod) {
			continue
		}
		if err := r.setPodHealth(ctx, pod, append(ill[pod.UID], topologyLost(ledger, pod)...)); err != nil {
			return err
		}
	}
	return nil
}

// illnesses are what is wrong with what pods have slices of.
func illnesses(ledger *v1alpha1.SliceLedger) map[types.UID][]index.Illness {
	var ill map[types.UID][]index.Illness
	for i := range ledger.Spec.Devices {
		d := &ledger.Spec.Devices[i]
		if len(d.Slices) == 0 || index.Healthy(ledger, d.UUID) {
			continue
		}
		noted := map[types.UID]string{} // containers that share a device
		for j := range d.Slices {
			s := &d.Slices[j]
			one, is := index.Unhealthy(ledger, d.UUID, s)
			if !is || noted[s.Pod] == one.Message {
				continue
			}
			if ill == nil {
				ill = map[types.UID][]index.Illness{}
			}
			noted[s.Pod] = one.Message
			ill[s.Pod] = append(ill[s.Pod], one)
		}
	}
	return ill
}

// topologyLost is that a pod's devices have no longer the topology that it requires, as where a
// link or the port of an RDMA device has gone down.
func topologyLost(ledger *v1alpha1.SliceLedger, pod *corev1.Pod) []index.Illness {
	wish := podrequest.TopologyOf(pod)
	if !wish.Required {
		return nil
	}
	p := grants.PlacementOf(ledger, pod)
	if p == nil || p.Topology == wish.Level {
		return nil
	}
	return []index.Illness{{Reason: index.ReasonTopology, Message: fmt.Sprintf("it requires %s, and what it has slices of on node %s no longer is that", wish.Level.Text(), ledger.Name)}}
}

// setPodHealth sets the pod's condition to what is wrong, or to nothing any more.
func (r *Reconciler) setPodHealth(ctx context.Context, pod *corev1.Pod, ill []index.Illness) error {
	was := conditionOf(pod, v1alpha1.PodConditionGPUHealthy)
	if len(ill) == 0 && (was == nil || was.Status == corev1.ConditionTrue) {
		return nil
	}
	now := corev1.PodCondition{
		Type: v1alpha1.PodConditionGPUHealthy, Status: corev1.ConditionTrue,
		Reason: index.ReasonRecovered, Message: "everything that it has slices of is healthy again",
	}
	kind, reason, text := corev1.EventTypeNormal, notify.ReasonRecovered, now.Message
	if len(ill) > 0 {
		var all []string
		for _, i := range ill {
			all = append(all, i.Message)
		}
		now.Status, now.Reason, now.Message = corev1.ConditionFalse, ill[0].Reason, strings.Join(all, "; ")
		kind, reason = corev1.EventTypeWarning, notify.ReasonUnhealthy
		text = now.Message + ". Containers that run are left alone; delete the pod to have it placed on another device"
	}
	if was != nil && was.Status == now.Status && was.Reason == now.Reason && was.Message == now.Message {
		return nil
	}
	if was == nil || was.Status != now.Status {
		now.LastTransitionTime = metav1.NewTime(r.Clock.Now())
	} else {
		now.LastTransitionTime = was.LastTransitionTime
	}
	// A new message for the same state is worth no event.
	if was != nil && was.Status == now.Status && was.Reason == now.Reason {
		now.LastProbeTime = was.LastProbeTime
		return r.Binder.SetCondition(ctx, pod, now)
	}
	now.LastProbeTime = metav1.NewTime(r.Clock.Now())
	if err := r.Notify.Once(ctx, pod, kind, reason, text, changeOf(was, &now)); err != nil {
		return err
	}
	return r.Binder.SetCondition(ctx, pod, now)
}

// changeOf names a change of the condition, the same until it was made.
// Each has the time of the one before.
func changeOf(was, now *corev1.PodCondition) string {
	before := "none"
	if was != nil {
		before = fmt.Sprint(was.Status, was.Reason, was.LastProbeTime.Unix())
	}
	return fmt.Sprint(before, now.Status, now.Reason)
}

func conditionOf(pod *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == of {
			return c
		}
	}
	return nil
}
