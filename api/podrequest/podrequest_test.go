// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"vernier.dev/vernier/api/v1alpha1"
)

// Pods of different classes fit on different devices.
func TestEquivalenceClass(t *testing.T) {
	pod := func(class string) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
		if class != "" {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{v1alpha1.ClassResource(class): resource.MustParse("1")}
		}
		return p
	}
	if EquivalenceClass(pod("gold")) == EquivalenceClass(pod("shared")) {
		t.Error("pods of two classes fit on the same devices")
	}
	named := pod("")
	named.Spec.InitContainers = []corev1.Container{{Name: "a"}, {Name: "gold"}}
	if EquivalenceClass(pod("gold")) == EquivalenceClass(named) {
		t.Error("a class is taken for the name of a container")
	}
}
