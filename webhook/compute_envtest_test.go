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
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/webhook"
)

// What a namespace gives to a container that asks for memory only is in the pod as the API
// server keeps it, and the policies agree; a namespace that requires compute has the pod refused.
func TestComputeShares(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/webhook.yaml", "admission/policy.yaml", "admission/webhook-policy.yaml"}})
	c := apiserver.Client(t, cfg)
	namespaces(t, c)
	const strict = "strict"
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: strict, Labels: map[string]string{api.LabelInject: api.LabelInjectEnabled}}}
	expect(t, c.Create(t.Context(), ns), "")
	at := address(t)
	install(t, cfg, at)
	start(t, cfg, at, webhook.Options{ComputeShares: "enabled=20,strict=required"})
	await(t, "a pod is admitted", func() bool { return c.Create(t.Context(), asking(enabled), client.DryRunAll) == nil })

	memory := func(namespace string) *corev1.Pod {
		pod := asking(namespace)
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{api.ResourceMemPercent: resource.MustParse("150"), api.ResourceGPUs: resource.MustParse("2")}
		return pod
	}
	pod := memory(enabled)
	expect(t, c.Create(t.Context(), pod), "")
	for what, list := range map[string]corev1.ResourceList{"limits": pod.Spec.Containers[0].Resources.Limits, "requests": pod.Spec.Containers[0].Resources.Requests} {
		if q := list[api.ResourceCore]; q.Value() != 40 {
			t.Errorf("%s %v, want 40 %s", what, list, api.ResourceCore)
		}
	}
	if got, want := pod.Annotations[api.AnnotationShares], `{"version":"v1alpha1","containers":{"train":{"gpus":2,"core":20,"memPercent":75}}}`; got != want {
		t.Errorf("shares %s, want %s", got, want)
	}
	expect(t, c.Create(t.Context(), asking(strict)), "")
	expect(t, c.Create(t.Context(), memory(strict)), "container train asks for memory only, and namespace strict requires compute")
}
