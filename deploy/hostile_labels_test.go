// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// With a stolen token of the allocator a node gets no label but those of its GPUs, and nothing else of it
// is changed.
func TestHostileNodeLabels(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/allocator.yaml", "admission/allocator-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	c := apiserver.Client(t, stolen(t, cfg, v1alpha1.AllocatorServiceAccount, nil))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{"a": "b"}}}
	must.Do(t, admin.Create(t.Context(), node))
	node.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}, {Key: v1alpha1.TaintAgentNotReady, Effect: corev1.TaintEffectNoSchedule}}
	must.Do(t, admin.Update(t.Context(), node))
	patch := func(what, document, want string) {
		t.Helper()
		at := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		expect(t, what, c.Patch(t.Context(), at, client.RawPatch("application/merge-patch+json", []byte(document))), want)
	}
	const refused = "the allocator may change vernier.dev/gpu-model, gpu-count and gpu-mem-mib of a node, remove the"
	patch("its own labels", `{"metadata":{"labels":{"vernier.dev/gpu-model":"A100","vernier.dev/gpu-count":"2","vernier.dev/gpu-mem-mib":"81920"}}}`, "")
	patch("one of them less", `{"metadata":{"labels":{"vernier.dev/gpu-model":null}}}`, "")
	patch("another label", `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, refused)
	patch("another label of vernier.dev", `{"metadata":{"labels":{"vernier.dev/mig-mode":"enabled"}}}`, refused)
	patch("another's label", `{"metadata":{"labels":{"zone":"b"}}}`, refused)
	patch("another's label less", `{"metadata":{"labels":{"zone":null}}}`, refused)
	patch("an annotation", `{"metadata":{"annotations":{"a":"c"}}}`, refused)
	patch("a finalizer", `{"metadata":{"finalizers":["example.com/held"]}}`, refused)
	patch("an owner", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}]}}`, refused)
	patch("a taint", `{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`, refused)
	patch("all taints less", `{"spec":{"taints":null}}`, refused)
	patch("another taint less", `{"spec":{"taints":[{"key":"vernier.dev/agent-not-ready","effect":"NoSchedule"}]}}`, refused)
	patch("the startup taint less, and a cordon", `{"spec":{"unschedulable":true,"taints":[{"key":"gpu","effect":"NoSchedule"}]}}`, refused)
	patch("the startup taint less", `{"spec":{"taints":[{"key":"gpu","effect":"NoSchedule"}]}}`, "")
	patch("the startup taint again", `{"spec":{"taints":[{"key":"gpu","effect":"NoSchedule"},{"key":"vernier.dev/agent-not-ready","effect":"NoSchedule"}]}}`, refused)
	patch("cordon", `{"spec":{"unschedulable":true}}`, refused)
	expect(t, "its status", c.Status().Patch(t.Context(), node, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"capacity":{"a":"1"}}}`))), "forbidden")
	expect(t, "its end", c.Delete(t.Context(), node), "forbidden")
	is := &corev1.Node{}
	must.Do(t, admin.Get(t.Context(), client.ObjectKeyFromObject(node), is))
	if is.Labels["vernier.dev/gpu-count"] != "2" || is.Labels["zone"] != "a" || len(is.Labels) != 3 {
		t.Errorf("labels %v", is.Labels)
	}
}
