// SPDX-License-Identifier: Apache-2.0

// Package podstate owns the reading of a pod's state: its gates, whether it is
// placed, bound, refused or done, and what the cache keeps. Every function is pure.
package podstate

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// KeyOf is the pod's namespace and name.
func KeyOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// CompareKeys orders by namespace, then by name.
func CompareKeys(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// OwnerKey is the pod that a slice's owner names.
func OwnerKey(owner string) types.NamespacedName {
	namespace, name, _ := strings.Cut(owner, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// Ours reports whether the pod asks for slices, has a placement or has our gate.
func Ours(pod *corev1.Pod) bool {
	return podrequest.Marked(pod) || podrequest.Placed(pod) || Gated(pod)
}

// Gated reports whether our gate is among the pod's gates.
func Gated(pod *corev1.Pod) bool {
	return slices.Contains(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: v1alpha1.Gate})
}

// OtherGates are the pod's gates but ours.
func OtherGates(pod *corev1.Pod) (gates []string) {
	for _, g := range pod.Spec.SchedulingGates {
		if g.Name != v1alpha1.Gate {
			gates = append(gates, g.Name)
		}
	}
	return gates
}

// Ready reports whether the pod waits for us alone: our gate is the last one. A pod that was
// set to a terminal phase at the gate needs no node.
func Ready(pod *corev1.Pod) bool {
	return len(pod.Spec.SchedulingGates) == 1 && Gated(pod) && pod.DeletionTimestamp == nil && !Terminal(pod)
}

// WaitsForOtherGates reports whether there is another gate beside ours.
func WaitsForOtherGates(pod *corev1.Pod) bool {
	return Gated(pod) && !Ready(pod) && !NeverRuns(pod)
}

// Arrived reports whether the pod is Ready or was: no gate but ours is or was left.
func Arrived(pod *corev1.Pod) bool { return Ready(pod) || len(pod.Spec.SchedulingGates) == 0 }

// Terminal reports whether the pod has succeeded or failed.
func Terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// NeverRuns reports whether the pod was deleted before it was bound and only waits
// for its finalizers. The API server binds no pod that is being deleted.
func NeverRuns(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.Spec.NodeName == ""
}

// TargetNode is the node that the pod is bound to or placed on. It is empty for a pod that is
// neither, and for one that will be bound to none.
func TargetNode(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	if NeverRuns(pod) || len(pod.Spec.SchedulingGates) > 0 || !podrequest.Placed(pod) {
		return ""
	}
	placed, err := podrequest.PlacementOf(pod)
	if err != nil {
		return ""
	}
	return placed.Node
}

// CreateFailed reports whether the pod is bound and the last attempt to create one of its
// containers failed.
func CreateFailed(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || Terminal(pod) {
		return false
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil && w.Reason == "CreateContainerError" {
				return true
			}
		}
	}
	return false
}

// NeverStarted reports whether a creation failed and none of the containers runs or ever ran.
func NeverStarted(pod *corev1.Pod) bool {
	return CreateFailed(pod) && !AnyStarted(pod)
}

// AnyStarted reports whether a container of the pod has been created: also an init container.
func AnyStarted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses),
		func(s corev1.ContainerStatus) bool { return s.ContainerID != "" || s.State.Waiting == nil })
}

// Unbound reports whether the pod is placed and not bound.
func Unbound(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && TargetNode(pod) != "" && !Terminal(pod)
}

// Unschedulable reports whether the scheduler says that it cannot bind a placed pod, or that
// binding it has failed. A nominated pod is not: it waits for the pods that it preempts, or for
// its volumes.
func Unschedulable(pod *corev1.Pod) bool {
	reason := scheduledReason(pod)
	return Unbound(pod) && pod.Status.NominatedNodeName == "" && (reason == corev1.PodReasonUnschedulable || reason == corev1.PodReasonSchedulerError)
}

// Preempting reports whether a placed pod waits for the pods that the scheduler preempts for it.
func Preempting(pod *corev1.Pod) bool {
	return Unbound(pod) && pod.Status.NominatedNodeName != "" && scheduledReason(pod) == corev1.PodReasonUnschedulable
}

// Unclaimed reports whether the pod is placed and no scheduler has set a condition: there may be
// none of the name that its spec has.
func Unclaimed(pod *corev1.Pod) bool {
	// What the API server says of a gated pod stays until the scheduler says something else.
	reason := scheduledReason(pod)
	return Unbound(pod) && pod.Status.NominatedNodeName == "" && (reason == "" || reason == corev1.PodReasonSchedulingGated)
}

// Stuck reports whether the pod is past our gate and does not get on. A container could not be
// created, the scheduler refuses it, or no scheduler of its spec.schedulerName has taken it.
func Stuck(pod *corev1.Pod) bool {
	named := pod.Spec.SchedulerName != "" && pod.Spec.SchedulerName != corev1.DefaultSchedulerName
	return CreateFailed(pod) || Unschedulable(pod) || named && Unclaimed(pod)
}

// scheduledReason is why the pod is not scheduled, empty without a condition.
func scheduledReason(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return cmp.Or(c.Reason, string(c.Status))
		}
	}
	return ""
}

// NominatedNode is the node on which the scheduler makes room for the pod; empty if the pod is
// counted on a node already.
func NominatedNode(pod *corev1.Pod, counted string) string {
	if counted != "" || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || Terminal(pod) {
		return ""
	}
	return pod.Status.NominatedNodeName
}

// Older reports whether a is an earlier version of the pod than b.
func Older(a, b *corev1.Pod) bool { return OlderVersion(a.ResourceVersion, b.ResourceVersion) }

// OlderVersion reports whether a is an earlier resourceVersion than b.
func OlderVersion(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && c < 0
}

// OldestFirst are the pods in order of creation.
func OldestFirst[K comparable](pods map[K]*corev1.Pod) []*corev1.Pod {
	return slices.SortedFunc(maps.Values(pods), ByAge)
}

// ByAge orders by creation, then by key.
func ByAge(p, q *corev1.Pod) int {
	return cmp.Or(p.CreationTimestamp.Compare(q.CreationTimestamp.Time), CompareKeys(KeyOf(p), KeyOf(q)))
}

// BoundAt is when the pod was bound, from its condition PodScheduled.
func BoundAt(pod *corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// WaitingMessage is the kubelet's reason and message for a container that does not start.
func WaitingMessage(pod *corev1.Pod) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Message != "" {
			return w.Reason + ": " + w.Message
		}
	}
	return ""
}
