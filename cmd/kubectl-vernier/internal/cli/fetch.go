// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/eventlist"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/api/v1alpha1"
)

// newClient goes straight to the API server. The kinds are mapped by hand:
// discovery would cost two requests to learn what is known.
func newClient(cfg *rest.Config) (client.Client, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind := range scheme.AllKnownTypes() {
		scope := meta.RESTScopeNamespace // of what is read
		if slices.Contains([]string{"SliceLedger", "SliceUsage", "GPUClass", "Tide", "Node", "Namespace", "PersistentVolume", "StorageClass", "SelfSubjectReview", "ClusterRole", "ClusterRoleBinding",
			"CustomResourceDefinition", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}, kind.Kind) {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(kind, scope)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.WarningHandler, cfg.WarningHandlerWithContext = nil, warnings{}
	return client.New(cfg, client.Options{Scheme: scheme, Mapper: mapper})
}

// newScheme knows all that is read.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(corev1.AddToScheme(scheme), policyv1.AddToScheme(scheme), authenticationv1.AddToScheme(scheme),
		appsv1.AddToScheme(scheme), storagev1.AddToScheme(scheme), admissionregistrationv1.AddToScheme(scheme), rbacv1.AddToScheme(scheme),
		apiextensionsv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
}

// gpuClasses lists the classes; none where the user may not read them, and where there is no
// such kind: then pods of a class are shown as those of one that there is not.
func gpuClasses(ctx context.Context, c client.Reader) ([]v1alpha1.GPUClass, error) {
	var list v1alpha1.GPUClassList
	err := c.List(ctx, &list)
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	return slices.Concat([]v1alpha1.GPUClass{}, list.Items), err
}

// ledgers lists all ledgers.
func ledgers(ctx context.Context, c client.Reader) ([]v1alpha1.SliceLedger, error) {
	var list v1alpha1.SliceLedgerList
	if err := c.List(ctx, &list); err != nil {
		return nil, explain(err, "sliceledgers."+v1alpha1.Group, "")
	}
	return list.Items, nil
}

// fieldNodeName has the API server filter: a large cluster's pods stay where they are.
const fieldNodeName = "spec.nodeName"

// eventSource is what the allocator's events name as their source: its service
// account's name.
const eventSource = v1alpha1.AllocatorServiceAccount

// unbound lists the pods that have no node yet in a namespace, or in all if it
// is empty.
func unbound(ctx context.Context, c client.Reader, namespace string) ([]corev1.Pod, error) {
	return podsIn(ctx, c, namespace, client.MatchingFields{fieldNodeName: ""})
}

// verdicts lists the allocator's events on pods, likewise.
func (c *command) verdicts(ctx context.Context, namespace string) ([]corev1.Event, error) {
	return c.events(ctx, namespace, notify.OnPods)
}

// events lists those events of a namespace, or of all if it is empty.
func (c *command) events(ctx context.Context, namespace string, which fields.Selector) ([]corev1.Event, error) {
	api, err := c.clientset()
	if err != nil {
		return nil, err
	}
	events, more, err := eventlist.Read(ctx, api.CoreV1().RESTClient(), namespace, which, c.now())
	if err != nil {
		return nil, explain(err, "events", namespace)
	}
	if more {
		fmt.Fprintf(whole(c.errOut), "left out: events beyond the first %d, or %d MiB\n", eventlist.MaxEvents, eventlist.MaxBytes>>20)
	}
	return events, nil
}
