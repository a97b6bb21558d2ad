// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
)

// A node advertises the units that it has of each class, 0 where it has none of its models. Those
// of a class that is deleted stay with the last pod that asks for them, and go after it.
func testClasses(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.start(t)
	n.awaitCapacity(t, 2)
	class := func(name, model string) *v1alpha1.GPUClass {
		of := &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.GPUClassSpec{Models: []string{model}, Unit: v1alpha1.GPUUnit{Core: 10}}}
		if err := c.admin.Create(t.Context(), of); err != nil {
			t.Fatal(err)
		}
		return of
	}
	gold, _ := class("gold", "A100"), class("other", "none of these")
	units := func(name, want string) {
		t.Helper()
		n.await(t, "the node has "+want+" units of "+name, func() bool {
			status := n.node(t).Status
			capacity, has := status.Capacity[v1alpha1.ClassResource(name)]
			allocatable, hasToo := status.Allocatable[v1alpha1.ClassResource(name)]
			return has == hasToo && has == (want != "") && (!has || capacity.String() == want && allocatable.String() == want)
		})
	}
	units("gold", "20")
	units("other", "0")
	// A static pod, which needs no admission.
	kubelet := apiserver.Client(t, apiserver.As(c.config, "system:node:"+n.name, "system:nodes", "system:masters"))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "of-a-class", Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"}}, Spec: corev1.PodSpec{NodeName: n.name,
		Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{v1alpha1.ClassResource("gold"): resource.MustParse("3")}}}}}}
	if err := kubelet.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := c.admin.Delete(t.Context(), gold); err != nil {
		t.Fatal(err)
	}
	units("gold", "3")
	if err := c.admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	units("gold", "")
	units("other", "0")
}
