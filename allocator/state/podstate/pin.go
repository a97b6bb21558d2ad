// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PinTo is the affinity narrowed to one node. The node is matched by metadata.name
// and not by the hostname label. The scheduler then looks at that node only, and
// the label's value may differ from the name.
//
// Terms are alternatives, so every existing term gets the pin appended. That is
// the only change to a term that is allowed on a gated pod. An empty term matches
// no node and stays empty.
func PinTo(affinity *corev1.Affinity, node string) *corev1.Affinity {
	pinned := affinity.DeepCopy()
	if pinned == nil {
		pinned = &corev1.Affinity{}
	}
	if pinned.NodeAffinity == nil {
		pinned.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := &pinned.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	only := corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}
	if *required == nil {
		*required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{only}}}}
		return pinned
	}
	terms := (*required).NodeSelectorTerms
	for i := range terms {
		if len(terms[i].MatchExpressions)+len(terms[i].MatchFields) > 0 {
			terms[i].MatchFields = append(slices.Clip(terms[i].MatchFields), only)
		}
	}
	return pinned
}
