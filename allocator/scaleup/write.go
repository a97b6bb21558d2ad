// SPDX-License-Identifier: Apache-2.0

package scaleup

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kind is that of the buffers, in the version that is served.
var kind = schema.GroupKind{Group: "autoscaling.x-k8s.io", Kind: "CapacityBuffer"}

var podTemplate = corev1.SchemeGroupVersion.WithKind("PodTemplate")

// ours selects what is written here.
var ours = client.MatchingLabels{"app.kubernetes.io/managed-by": "vernier-allocator"}

// write writes the wanted buffers. Others first ask for nothing, since Karpenter does not see that
// a buffer is deleted and would keep its nodes. The next write deletes them; until then they are left. Those that were
// written are not written again.
func (k *Keeper) write(ctx context.Context, wanted, written []buffer) (left bool, err error) {
	mapping, err := k.Client.RESTMapper().RESTMapping(kind)
	if err != nil {
		return false, err
	}
	names := map[string]bool{}
	for _, b := range wanted {
		names[b.Name] = true
		if slices.ContainsFunc(written, func(w buffer) bool { return equality.Semantic.DeepEqual(w, b) }) {
			continue
		}
		pod, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&b.Pod)
		if err != nil {
			return false, err
		}
		if err := k.apply(ctx, podTemplate, b.Name, "template", map[string]any{"spec": pod}); err != nil {
			return false, err
		}
		if err := k.ask(ctx, mapping.GroupVersionKind, b.Name, b.Replicas); err != nil {
			return false, err
		}
	}
	for _, of := range []schema.GroupVersionKind{mapping.GroupVersionKind, podTemplate} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(of)
		if err := k.Client.List(ctx, list, client.InNamespace(k.Namespace), ours); err != nil {
			return false, err
		}
		for i := range list.Items {
			one := &list.Items[i]
			asked, _, _ := unstructured.NestedInt64(one.Object, "spec", "replicas")
			switch {
			case names[one.GetName()]:
			case of != podTemplate && asked > 0:
				err = k.ask(ctx, of, one.GetName(), 0)
				names[one.GetName()], left = true, true
			default:
				err = client.IgnoreNotFound(k.Client.Delete(ctx, one))
			}
			if err != nil {
				return left, err
			}
		}
	}
	return left, nil
}

// ask writes a buffer.
func (k *Keeper) ask(ctx context.Context, kind schema.GroupVersionKind, name string, replicas int) error {
	return k.apply(ctx, kind, name, "spec", map[string]any{"podTemplateRef": map[string]any{"name": name}, "replicas": int64(replicas)})
}

// apply writes an object of ours, which has one field beside its metadata.
func (k *Keeper) apply(ctx context.Context, kind schema.GroupVersionKind, name, field string, value any) error {
	object := &unstructured.Unstructured{Object: map[string]any{field: value}}
	object.SetGroupVersionKind(kind)
	object.SetNamespace(k.Namespace)
	object.SetName(name)
	object.SetLabels(ours)
	return k.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("vernier-allocator"), client.ForceOwnership)
}
