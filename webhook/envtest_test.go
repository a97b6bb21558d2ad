// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "vernier.dev/vernier/api/v1alpha1"
)

// Namespaces of these tests.
const (
	enabled  = "enabled"
	disabled = "disabled"
	other    = "other"
)

func namespaces(t *testing.T, c client.Client) {
	t.Helper()
	for name, labels := range map[string]map[string]string{
		enabled: {api.LabelInject: api.LabelInjectEnabled}, disabled: {api.LabelInject: "no"}, other: nil,
	} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if err := c.Create(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
	}
}

// plain asks for nothing.
func plain(namespace string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Namespace: namespace},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
}

// asking asks for 30 percent, as a user writes it.
func asking(namespace string) *corev1.Pod {
	pod := plain(namespace)
	pod.Spec.Containers[0].Name = "train"
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{api.ResourceCore: resource.MustParse("30")}
	return pod
}
