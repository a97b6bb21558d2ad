// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/component-helpers/resource"
)

// sameToOthers reports whether a pod that stays on its node is the same to the filters as
// it was: its labels, whether it is being deleted, as topology spread does not count such
// pods, and its requests.
func sameToOthers(a, b *corev1.Pod) bool {
	return maps.Equal(a.Labels, b.Labels) && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		equality.Semantic.DeepEqual(requests(a), requests(b))
}

// requests are what the scheduler counts of a pod on a node. A pod that is resized in place
// counts with what it was allotted until its node has made that less, or has reported that
// more is not possible.
func requests(pod *corev1.Pod) corev1.ResourceList {
	return resource.PodRequests(pod, resource.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true})
}
