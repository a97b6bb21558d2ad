// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// With a stolen token of the allocator node autoscalers are asked for no more than the operator allows, and
// nobody else's buffer or PodTemplate is changed.
func TestHostileBuffers(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/allocator.yaml", "admission/allocator-policy.yaml"}})
	definition := kueueOf("CapacityBuffer", "capacitybuffers", apiextensionsv1.NamespaceScoped)
	definition.Name, definition.Spec.Group = "capacitybuffers.autoscaling.x-k8s.io", "autoscaling.x-k8s.io"
	_ = must.Get(envtest.InstallCRDs(cfg, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{definition}}))
	admin := apiserver.Client(t, cfg)
	c := apiserver.Client(t, stolen(t, cfg, v1alpha1.AllocatorServiceAccount, nil))
	object := func(kind, name, by string, spec map[string]any) *unstructured.Unstructured {
		u := ofKueue(kind, v1alpha1.SystemNamespace, name, map[string]any{"spec": spec})
		if u.SetAPIVersion("autoscaling.x-k8s.io/" + u.GroupVersionKind().Version); kind == "PodTemplate" {
			u.Object = map[string]any{"apiVersion": "v1", "kind": kind, "metadata": u.Object["metadata"], "template": map[string]any{"spec": spec}}
		}
		u.SetLabels(map[string]string{"app.kubernetes.io/managed-by": by})
		return u
	}
	const own = "vernier-allocator"
	buffer := func(replicas int64, edits ...string) *unstructured.Unstructured {
		spec := map[string]any{"podTemplateRef": map[string]any{"name": "b"}, "replicas": replicas}
		for _, e := range edits {
			key, value, _ := strings.Cut(e, "=")
			spec[key] = value
		}
		return object("CapacityBuffer", "b", own, spec)
	}
	pod := map[string]any{"containers": []any{map[string]any{"name": "c", "image": "none"}}}
	for _, tt := range []struct {
		what string
		of   *unstructured.Unstructured
		want string
	}{
		{"its own template", object("PodTemplate", "b", own, pod), ""},
		{"another's template", object("PodTemplate", "b", "helm", pod), "the allocator may write only what has"},
		{"another's buffer", object("CapacityBuffer", "b", "helm", map[string]any{}), "the allocator may write only what has"},
		{"no GPU", buffer(0), ""},
		{"more than is allowed", buffer(1), "set scaleUp.maxGPUs"},
		{"as many as fit", buffer(0, "limits=x"), "and nothing else"},
		{"another strategy", buffer(0, "provisioningStrategy=standby"), "and nothing else"},
		{"another's template to be counted", object("CapacityBuffer", "b", own, map[string]any{"podTemplateRef": map[string]any{"name": "c"}}), "and nothing else"},
	} {
		expect(t, tt.what, c.Create(t.Context(), tt.of, client.DryRunAll), tt.want)
	}
	for _, u := range []*unstructured.Unstructured{object("PodTemplate", "other", "helm", pod), object("CapacityBuffer", "other", "helm", map[string]any{})} {
		must.Do(t, admin.Create(t.Context(), u))
		expect(t, "the end of another's "+u.GetKind(), c.Delete(t.Context(), u), "the allocator may write only what has")
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"vernier-allocator"}}}`))
		expect(t, "another's "+u.GetKind()+" taken", c.Patch(t.Context(), u, patch), "the allocator may write only what has")
	}
	expect(t, "a buffer elsewhere", c.Create(t.Context(), func() *unstructured.Unstructured { u := buffer(0); u.SetNamespace("default"); return u }()), "forbidden")
}
