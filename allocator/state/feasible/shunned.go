// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// ShunnedAlike reports whether each pod that keeps others away from itself, by required
// anti-affinity, keeps away both of these or neither. They are of one namespace. Those are
// asked that the last cycle saw, and it reports no where it cannot know.
func (f *Filters) ShunnedAlike(p, q *corev1.Pod) bool {
	if maps.Equal(p.Labels, q.Labels) {
		return true
	}
	nodes, err := f.snapshot.NodeInfos().HavePodsWithRequiredAntiAffinityList()
	if err != nil {
		return false
	}
	var namespace labels.Set
	if n, err := f.factory.Core().V1().Namespaces().Lister().Get(p.Namespace); err == nil {
		namespace = n.Labels
	}
	for _, node := range nodes {
		for _, pod := range node.GetPodsWithRequiredAntiAffinity() {
			for _, term := range pod.GetRequiredAntiAffinityTerms() {
				if term.Matches(p, namespace) != term.Matches(q, namespace) {
					return false
				}
			}
		}
	}
	return true
}
