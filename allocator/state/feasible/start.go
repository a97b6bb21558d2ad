// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// lent are the resources of which a node shows more while slices have less than their containers
// ask for.
var lent = []corev1.ResourceName{v1alpha1.ResourceCore, v1alpha1.ResourceMemPercent, v1alpha1.ResourceMemMiB}

// atStart are the containers without requests for what the node will show for them, if they begin
// with less than they ask for, or may be over-committed. The ledger says whether there is room for that.
func atStart(pod *corev1.Pod, containers []corev1.Container) []corev1.Container {
	to, burstable := podrequest.StartOf(pod), podrequest.Burstable(pod)
	if len(to) == 0 && !burstable {
		return containers
	}
	less := make([]corev1.Container, len(containers))
	for i, c := range containers {
		if less[i] = c; burstable || to[c.Name] != (v1alpha1.ResizeTo{}) {
			less[i].Resources.Requests = maps.Clone(c.Resources.Requests)
			of := lent
			if to[c.Name] == (v1alpha1.ResizeTo{}) {
				of = lent[:1] // memory is not over-committed
			}
			for _, name := range of {
				delete(less[i].Resources.Requests, name)
			}
		}
	}
	return less
}

// Overcommitted reports whether the pods that are counted on the node ask for more of the GPUs than it
// shows. Then its agent has not raised the capacity yet.
func (f *Filters) Overcommitted(node string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	shown := f.nodes[node]
	if shown == nil {
		return false
	}
	for _, name := range lent {
		var sum resource.Quantity
		for _, pod := range f.pods {
			if pod.Spec.NodeName == node {
				sum.Add(podresource.PodRequests(pod, podresource.PodResourcesOptions{})[name])
			}
		}
		if has := shown.Status.Allocatable[name]; sum.Cmp(has) > 0 {
			return true
		}
	}
	return false
}
