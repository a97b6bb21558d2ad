// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"
)

// sameToOthers tells whether a pod that stays on its node is the same to the filters as
// it was: by its labels, by what it takes of the node, and by whether it is on its way
// out, as spread does not count those.
func sameToOthers(a, b *corev1.Pod) bool {
	return maps.Equal(a.Labels, b.Labels) && takesTheSame(a, b) && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil)
}

// takesTheSame compares what two versions of a pod take of its node. One that is resized
// in place takes what it was allotted until its node has made that less, or has said that
// more is not possible. The sums cost more to work out than what they are made of costs to
// compare, and every change of every pod comes by here.
func takesTheSame(a, b *corev1.Pod) bool {
	if slices.EqualFunc(a.Spec.Containers, b.Spec.Containers, asksTheSame) &&
		slices.EqualFunc(a.Spec.InitContainers, b.Spec.InitContainers, asksTheSame) &&
		sameRequests(a.Spec.Resources, b.Spec.Resources) &&
		slices.EqualFunc(a.Status.ContainerStatuses, b.Status.ContainerStatuses, allottedTheSame) &&
		slices.EqualFunc(a.Status.InitContainerStatuses, b.Status.InitContainerStatuses, allottedTheSame) &&
		sameAmounts(a.Status.AllocatedResources, b.Status.AllocatedResources) &&
		sameRequests(a.Status.Resources, b.Status.Resources) &&
		resizePending(a) == resizePending(b) {
		return true
	}
	return sameAmounts(taken(a), taken(b))
}

// taken is what the scheduler counts of a pod on a node.
func taken(pod *corev1.Pod) corev1.ResourceList {
	return resource.PodRequests(pod, resource.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true})
}

func asksTheSame(a, b corev1.Container) bool {
	return sameAmounts(a.Resources.Requests, b.Resources.Requests)
}

func allottedTheSame(a, b corev1.ContainerStatus) bool {
	return sameAmounts(a.AllocatedResources, b.AllocatedResources) && sameRequests(a.Resources, b.Resources)
}

func sameRequests(a, b *corev1.ResourceRequirements) bool {
	if a == nil || b == nil {
		return a == b
	}
	return sameAmounts(a.Requests, b.Requests)
}

func sameAmounts(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(p, q quantity.Quantity) bool { return p.Cmp(q) == 0 })
}

// resizePending is why the node has not resized the pod, empty where it has.
func resizePending(pod *corev1.Pod) string {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodResizePending {
			return c.Reason
		}
	}
	return ""
}
