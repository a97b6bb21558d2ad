// SPDX-License-Identifier: Apache-2.0

// Package podgroups makes, for tests, the PodGroups that others define: the native
// one, with the Workload that it may come from, and those of the coscheduling plugin and of Volcano, with
// the CRDs that these install.
//
// It holds only what Vernier reads of them, and nothing that ships imports it.
package podgroups

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"vernier.dev/vernier/api/podrequest"
)

// ServeNative are the API server's flags with which Kubernetes 1.36 serves native
// PodGroups, and keeps their topology constraints and the field of the pod that names one.
var ServeNative = map[string]string{"feature-gates": "GenericWorkload=true,TopologyAwareWorkloadScheduling=true", "runtime-config": "scheduling.k8s.io/v1alpha2=true"}

// CRD is the coscheduling plugin's, as far as Vernier reads it.
func CRD() *unstructured.Unstructured {
	crd := definition(podrequest.Coscheduling, "v1alpha1")
	// Groups below x-k8s.io need it.
	crd.SetAnnotations(map[string]string{"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"})
	return crd
}

// VolcanoCRD is Volcano's, as far as Vernier reads it.
func VolcanoCRD() *unstructured.Unstructured { return definition(podrequest.Volcano, "v1beta1") }

func definition(api podrequest.GroupAPI, version string) *unstructured.Unstructured {
	schema := map[string]any{"type": "object", "properties": map[string]any{"spec": map[string]any{"type": "object", "properties": map[string]any{
		"minMember": map[string]any{"type": "integer", "format": "int32"}}}}}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "podgroups." + string(api)},
		"spec": map[string]any{
			"group": string(api),
			"names": map[string]any{"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"},
			"scope": "Namespaced",
			"versions": []any{map[string]any{"name": version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": schema}}},
		},
	}}
}

// Coscheduling is a PodGroup of the coscheduling plugin.
func Coscheduling(namespace, name string, minMember int64) *unstructured.Unstructured {
	return object(podrequest.Coscheduling, "v1alpha1", "PodGroup", namespace, name, map[string]any{"minMember": minMember})
}

// Volcano is a PodGroup of Volcano's, which its controllers make for each of its Jobs.
func Volcano(namespace, name string, minMember int64) *unstructured.Unstructured {
	return object(podrequest.Volcano, "v1beta1", "PodGroup", namespace, name, map[string]any{"minMember": minMember})
}

// Native is a native PodGroup with the gang policy, or with the basic one when
// minCount is 0.
func Native(namespace, name string, minCount int64) *unstructured.Unstructured {
	policy := map[string]any{"basic": map[string]any{}}
	if minCount > 0 {
		policy = map[string]any{"gang": map[string]any{"minCount": minCount}}
	}
	return object(podrequest.Native, "v1alpha2", "PodGroup", namespace, name, map[string]any{"schedulingPolicy": policy})
}

// Within has the pods of a native PodGroup be on nodes with the same value of a label.
func Within(g *unstructured.Unstructured, key string) *unstructured.Unstructured {
	g.Object["spec"].(map[string]any)["schedulingConstraints"] = map[string]any{"topology": []any{map[string]any{"key": key}}}
	return g
}

// Workload is a native Workload with one template of a gang, and the PodGroup that
// its controller makes of that: a copy of the template's policy and a reference.
func Workload(namespace, name string, minCount int64) (workload, podGroup *unstructured.Unstructured) {
	const template = "workers"
	podGroup = Native(namespace, name, minCount)
	spec := podGroup.Object["spec"].(map[string]any)
	workload = object(podrequest.Native, "v1alpha2", "Workload", namespace, name, map[string]any{"podGroupTemplates": []any{
		map[string]any{"name": template, "schedulingPolicy": spec["schedulingPolicy"]}}})
	spec["podGroupTemplateRef"] = map[string]any{"workload": map[string]any{"workloadName": name, "podGroupTemplateName": template}}
	return workload, podGroup
}

func object(api podrequest.GroupAPI, version, kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": string(api) + "/" + version,
		"kind":       kind,
		"metadata":   map[string]any{"namespace": namespace, "name": name},
		"spec":       spec,
	}}
}
