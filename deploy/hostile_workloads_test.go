// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"vernier.dev/vernier/allocator/kueue"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/objects"
)

// kueueOf defines a resource of Kueue's with any fields: what the policies look at.
func kueueOf(kind, plural string, scope apiextensionsv1.ResourceScope) *apiextensionsv1.CustomResourceDefinition {
	d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: plural + "." + kueue.Group,
		Annotations: map[string]string{"api-approved.kubernetes.io": "unapproved, of a test"}}}
	d.Spec.Group, d.Spec.Scope = kueue.Group, scope
	d.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, Plural: plural}
	d.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{
		Name: kueue.Version, Served: true, Storage: true, Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}},
	}}
	return d
}

func ofKueue(kind, namespace, name string, fields map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: fields}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: kueue.Group, Version: kueue.Version, Kind: kind})
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// With a stolen token of the allocator nothing of a Workload is changed but what checks say, no pod gets more
// by that than its Workload's UID, and no other controller's check is said to be active.
func TestHostileWorkloads(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/allocator.yaml", "admission/allocator-policy.yaml"}})
	_ = must.Get(envtest.InstallCRDs(cfg, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		kueueOf("Workload", "workloads", apiextensionsv1.NamespaceScoped), kueueOf("AdmissionCheck", "admissionchecks", apiextensionsv1.ClusterScoped)}}))
	admin := apiserver.Client(t, cfg)
	c := apiserver.Client(t, stolen(t, cfg, v1alpha1.AllocatorServiceAccount, nil))
	w := ofKueue("Workload", "default", "w", map[string]any{"spec": map[string]any{"active": true}})
	own := ofKueue("AdmissionCheck", "", "own", map[string]any{"spec": map[string]any{"controllerName": v1alpha1.AdmissionCheckController}})
	other := ofKueue("AdmissionCheck", "", "other", map[string]any{"spec": map[string]any{"controllerName": "kueue.x-k8s.io/multikueue"}})
	for _, u := range []*unstructured.Unstructured{w, own, other} {
		must.Do(t, admin.Create(t.Context(), u))
	}
	check := func(updates string) string {
		return `{"status":{"admissionChecks":[{"name":"placement","state":"Ready","message":"","podSetUpdates":[` + updates + `]}]}}`
	}
	merge := func(u *unstructured.Unstructured, document string) error {
		return c.Status().Patch(t.Context(), u.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(document)))
	}
	must.Do(t, admin.Status().Patch(t.Context(), w.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(
		`{"status":{"conditions":[],"admissionChecks":[{"name":"placement","state":"Pending","message":""}]}}`))))
	uid := string(w.GetUID())
	const another, more = "the allocator may change what admission checks of a Workload say, and nothing else", "may add vernier.dev/reserved-for with the UID of the Workload"
	expect(t, "a verdict", merge(w, check(`{"name":"main","annotations":{"vernier.dev/reserved-for":"`+uid+`"}}`)), "")
	expect(t, "another UID", merge(w, check(`{"name":"main","annotations":{"vernier.dev/reserved-for":"u"}}`)), more)
	expect(t, "another annotation", merge(w, check(`{"name":"main","annotations":{"a":"b"}}`)), more)
	expect(t, "a toleration", merge(w, check(`{"name":"main","tolerations":[{"operator":"Exists"}]}`)), more)
	expect(t, "a node selector", merge(w, check(`{"name":"main","nodeSelector":{"a":"b"}}`)), more)
	expect(t, "a check more", merge(w, `{"status":{"admissionChecks":[{"name":"placement","state":"Ready"},{"name":"b","state":"Ready"}]}}`), another)
	expect(t, "no check", merge(w, `{"status":{"admissionChecks":[]}}`), another)
	expect(t, "quota", merge(w, `{"status":{"conditions":[{"type":"QuotaReserved","status":"True"}]}}`), another)
	expect(t, "an admission", merge(w, `{"status":{"admission":{"clusterQueue":"q"}}}`), another)
	expect(t, "its spec", c.Patch(t.Context(), w.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"active":false}}`))), "forbidden")
	expect(t, "its end", c.Delete(t.Context(), w.DeepCopy()), "forbidden")
	const checks = "the allocator may change the condition Active of an AdmissionCheck of vernier.dev/placement, and nothing else"
	expect(t, "its check", merge(own, `{"status":{"conditions":[{"type":"Active","status":"True"}]}}`), "")
	expect(t, "another condition", merge(own, `{"status":{"conditions":[{"type":"Other","status":"True"}]}}`), checks)
	expect(t, "another's check", merge(other, `{"status":{"conditions":[{"type":"Active","status":"True"}]}}`), checks)
}

// A pod gets the Workload whose reserved room it takes at creation, or while it waits at Kueue's gate; never
// later, and nobody changes it.
func TestHostileReservedFor(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "admission/policy.yaml"}})
	c := apiserver.Client(t, cfg)
	must.Do(t, c.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"vernier.dev/inject":"enabled"}}}`))))
	queued := corev1.PodSchedulingGate{Name: "kueue.x-k8s.io/admission"}
	pod := func(name string, edit func(*corev1.Pod)) *corev1.Pod {
		p := objects.Single(name, objects.Share(10, 100), edit)
		p.Namespace, p.UID, p.ResourceVersion = "default", "", ""
		p.Spec.Containers[0].Image = "i"
		must.Do(t, c.Create(t.Context(), p))
		return p
	}
	annotate := func(p *corev1.Pod, value string, ungate bool) error {
		next := p.DeepCopy()
		if metav1.SetMetaDataAnnotation(&next.ObjectMeta, v1alpha1.AnnotationReservedFor, value); ungate {
			next.Spec.SchedulingGates = next.Spec.SchedulingGates[:1]
		}
		err := c.Patch(t.Context(), next, client.MergeFrom(p))
		if err == nil {
			*p = *next
		}
		return err
	}
	const refused = "are read at creation only and cannot change"
	waits := pod("waits", func(p *corev1.Pod) { p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, queued) })
	expect(t, "as Kueue's gate goes", annotate(waits, "u", true), "")
	expect(t, "another", annotate(waits, "v", false), refused)
	late := pod("late", func(*corev1.Pod) {})
	expect(t, "without Kueue's gate", annotate(late, "u", false), refused)
	twice := pod("twice", func(p *corev1.Pod) {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, queued)
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, v1alpha1.AnnotationReservedFor, "u")
	})
	expect(t, "another while Kueue's gate is there", annotate(twice, "v", true), refused)
}
