// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
)

func keyOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// ownerKey is the pod that a slice's owner names.
func ownerKey(owner string) types.NamespacedName {
	namespace, name, _ := strings.Cut(owner, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// ours tells whether the pod has to do with us.
func ours(pod *corev1.Pod) bool {
	return pod.Annotations[v1alpha1.AnnotationShares] != "" || pod.Annotations[v1alpha1.AnnotationPlacement] != "" || gated(pod)
}

// gated tells whether our gate is among the pod's gates.
func gated(pod *corev1.Pod) bool {
	return slices.Contains(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: v1alpha1.Gate})
}

// others are the pod's gates but ours.
func others(pod *corev1.Pod) (gates []string) {
	for _, g := range pod.Spec.SchedulingGates {
		if g.Name != v1alpha1.Gate {
			gates = append(gates, g.Name)
		}
	}
	return gates
}

// ready tells whether it is our turn: our gate is the last one. A pod that somebody has
// declared over at the gate is for no node any more.
func ready(pod *corev1.Pod) bool {
	return len(pod.Spec.SchedulingGates) == 1 && gated(pod) && pod.DeletionTimestamp == nil && !terminal(pod)
}

// waitsForOthers tells whether there is another gate beside ours.
func waitsForOthers(pod *corev1.Pod) bool { return gated(pod) && !ready(pod) && !neverRuns(pod) }

// arrived tells whether it is our turn, or was: no gate but ours is or was left.
func arrived(pod *corev1.Pod) bool { return ready(pod) || len(pod.Spec.SchedulingGates) == 0 }

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// neverRuns tells whether the pod was deleted before it was bound and only waits
// for its finalizers: the API server binds no pod that is being deleted.
func neverRuns(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.Spec.NodeName == ""
}

// home is the node that the pod is on or will be on; empty while that is open, and
// when it will be on none.
func home(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	if neverRuns(pod) || len(pod.Spec.SchedulingGates) > 0 || pod.Annotations[v1alpha1.AnnotationPlacement] == "" {
		return ""
	}
	placed, err := v1alpha1.ParsePlacement(pod.Annotations[v1alpha1.AnnotationPlacement])
	if err != nil {
		return ""
	}
	return placed.Node
}

// denied tells whether the pod is bound and the last attempt to create one of its
// containers failed.
func denied(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || terminal(pod) {
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

// stuck tells whether it is denied, and none of its containers runs or ever ran.
func stuck(pod *corev1.Pod) bool {
	return denied(pod) && !slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses),
		func(s corev1.ContainerStatus) bool { return s.ContainerID != "" || s.State.Waiting == nil })
}

// refused tells whether the scheduler says that it cannot bind a placed pod, with
// nothing under way that would help: a nominated pod waits for the end of others,
// which it preempts, for as long as their grace periods are.
func refused(pod *corev1.Pod) bool {
	if pod.Spec.NodeName != "" || pod.Status.NominatedNodeName != "" {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable && home(pod) != ""
		}
	}
	return false
}

// ignored tells whether the pod is placed and the scheduler that its spec names has not said a
// word of it: there may be none of that name. That the default one is busy, or away for a
// while, is seen without us.
func ignored(pod *corev1.Pod) bool {
	named := pod.Spec.SchedulerName != "" && pod.Spec.SchedulerName != corev1.DefaultSchedulerName
	if !named || pod.Spec.NodeName != "" || home(pod) == "" || terminal(pod) || pod.Status.NominatedNodeName != "" {
		return false
	}
	// What the API server says of a gated pod stays until the scheduler says something else.
	return !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Reason != corev1.PodReasonSchedulingGated
	})
}

// nominated is the node on which the scheduler has made room for the pod, or is about to,
// if the pod is not counted on one.
func nominated(pod *corev1.Pod, counted string) string {
	if counted != "" || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || terminal(pod) {
		return ""
	}
	return pod.Status.NominatedNodeName
}

func priorityOf(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}
