// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
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

// Unplaced is a placed pod as it was before: what its controller makes instead of it.
func Unplaced(pod *corev1.Pod) *corev1.Pod {
	node, p := TargetNode(pod), pod.DeepCopy()
	p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending}
	delete(p.Annotations, v1alpha1.AnnotationPlacement)
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		for i := range required.NodeSelectorTerms {
			fields := &required.NodeSelectorTerms[i].MatchFields
			if n := len(*fields) - 1; n >= 0 && (*fields)[n].Key == metav1.ObjectNameField && slices.Equal((*fields)[n].Values, []string{node}) {
				*fields = (*fields)[:n]
			}
		}
		// A term that had nothing else was the pin alone.
		if terms := required.NodeSelectorTerms; len(terms) == 1 && len(terms[0].MatchExpressions)+len(terms[0].MatchFields) == 0 {
			a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = nil
		}
	}
	return p
}
