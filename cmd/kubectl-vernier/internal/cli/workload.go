// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/eventlist"
)

// workload is an object that makes pods.
type workload struct {
	// object is KIND/NAME; empty for a pod.
	object string
	pods   []corev1.Pod
	// failures are the FailedCreate events of the controllers that make its pods.
	failures []corev1.Event
}

// findWorkload reads a workload of any kind, named as for kubectl, and finds its pods and
// its failures to create them by the controllers' owner references.
func (c *command) findWorkload(ctx context.Context, r client.Reader, name string) (*workload, error) {
	ns := c.ns
	infos, err := resource.NewBuilder(c.flags).Unstructured().NamespaceParam(ns).DefaultNamespace().
		ResourceTypeOrNameArgs(false, name).SingleResourceType().Do().Infos()
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no %s in namespace %s: -n NAME asks in another one", name, ns)
	case err != nil:
		return nil, err
	case len(infos) != 1 || !infos[0].Namespaced():
		return nil, fmt.Errorf("%s is not in a namespace, and makes no pods: name a pod, or what makes pods", name)
	}
	object, ok := infos[0].Object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("%s is a %T", name, infos[0].Object)
	}
	o, err := c.newOwners()
	if err != nil {
		return nil, err
	}
	w := &workload{object: object.GetKind() + "/" + object.GetName()}
	pods, err := podsIn(ctx, r, ns, selecting(object)...)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		if o.lead(ctx, metav1.GetControllerOf(&pod), object.GetUID()) {
			w.pods = append(w.pods, pod)
		}
	}
	failures, err := c.events(ctx, ns, fields.Set{eventlist.FieldReason: "FailedCreate"}.AsSelector())
	if err != nil {
		return nil, err
	}
	for _, e := range failures {
		of := e.InvolvedObject
		if o.lead(ctx, &metav1.OwnerReference{APIVersion: of.APIVersion, Kind: of.Kind, UID: of.UID}, object.GetUID()) && !o.replaced(of.UID) {
			w.failures = append(w.failures, e)
		}
	}
	for _, err := range o.unread {
		fmt.Fprintf(whole(c.errOut), "left out: what may be owned through objects that cannot be listed: %v\n", err)
	}
	return w, nil
}

// selecting narrows a list of pods down to those that a workload of Kubernetes' own selects:
// their controllers let go of all others. Of other kinds nobody knows what a selector selects.
func selecting(object *unstructured.Unstructured) []client.ListOption {
	if !slices.Contains([]string{"apps/v1", "batch/v1"}, object.GetAPIVersion()) {
		return nil
	}
	raw, _, _ := unstructured.NestedMap(object.Object, "spec", "selector")
	var s metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw, &s); err != nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil || selector.Empty() {
		return nil
	}
	return []client.ListOption{client.MatchingLabelsSelector{Selector: selector}}
}

// Owner references are their authors' own: they may lead in a circle, or name any kind.
const (
	maxOwnerDepth = 10
	maxOwnerKinds = 20
)

// owners knows the controllers of a namespace's objects. It lists the kinds that owner
// references name, once each.
type owners struct {
	namespace string
	mapper    meta.RESTMapper
	client    metadata.Interface
	listed    map[schema.GroupKind]bool
	known     map[types.UID]*metav1.PartialObjectMetadata
	unread    []error
}

func (c *command) newOwners() (*owners, error) {
	mapper, err := c.flags.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	cfg, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := metadata.NewForConfig(cfg)
	return &owners{namespace: c.ns, mapper: mapper, client: client,
		listed: map[schema.GroupKind]bool{}, known: map[types.UID]*metav1.PartialObjectMetadata{}}, err
}

// lead reports whether the controllers from the given one on lead to the object.
func (o *owners) lead(ctx context.Context, from *metav1.OwnerReference, to types.UID) bool {
	for range maxOwnerDepth {
		if from == nil || from.UID == to {
			return from != nil
		}
		o.list(ctx, schema.FromAPIVersionAndKind(from.APIVersion, from.Kind))
		object := o.known[from.UID]
		if object == nil {
			return false
		}
		from = metav1.GetControllerOfNoCopy(object)
	}
	return false
}

func (o *owners) list(ctx context.Context, gvk schema.GroupVersionKind) {
	if o.listed[gvk.GroupKind()] || len(o.listed) == maxOwnerKinds {
		return
	}
	o.listed[gvk.GroupKind()] = true
	mapping, err := o.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil || mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return
	}
	found, err := o.client.Resource(mapping.Resource).Namespace(o.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		o.unread = append(o.unread, err)
		return
	}
	for i := range found.Items {
		o.known[found.Items[i].UID] = &found.Items[i]
	}
}

// replaced reports whether the object is a ReplicaSet of a Deployment that has a newer one.
func (o *owners) replaced(uid types.UID) bool {
	object := o.known[uid]
	if object == nil || metav1.GetControllerOfNoCopy(object) == nil {
		return false
	}
	for _, other := range o.known {
		if of := metav1.GetControllerOfNoCopy(other); of != nil && of.UID == metav1.GetControllerOfNoCopy(object).UID && revision(other) > revision(object) {
			return true
		}
	}
	return false
}

// revision that the deployment controller gives to a ReplicaSet; 0 for other objects.
func revision(object metav1.Object) int {
	n, err := strconv.Atoi(object.GetAnnotations()["deployment.kubernetes.io/revision"])
	if err != nil {
		return 0
	}
	return n
}
