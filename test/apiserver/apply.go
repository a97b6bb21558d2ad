// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// Apply applies files or folders, relative to deploy/manifests, and waits for admission
// policies among them to be in force.
func Apply(t testing.TB, cfg *rest.Config, paths ...string) {
	t.Helper()
	c, objects := Client(t, cfg), Manifests(t, paths...)
	must.Do(t, manifests.Apply(t.Context(), c, objects...))
	for _, obj := range objects {
		if obj.GetKind() == "ValidatingAdmissionPolicyBinding" {
			awaitPolicies(t, c)
			return
		}
	}
}

// Manifests are the objects in files or folders, relative to deploy/manifests.
func Manifests(t testing.TB, paths ...string) []*unstructured.Unstructured {
	t.Helper()
	objects := must.Get(manifests.Read(paths...))(t)
	return objects
}

// Client is a client without a cache: it sees what the server has now.
func Client(t testing.TB, cfg *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	must.Do(t, errors.Join(kubernetes.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	c := must.Get(client.New(cfg, client.Options{Scheme: scheme}))(t)
	return c
}

// awaitPolicies waits until the API server has taken up every policy that was stored, from
// its watches, a moment later. They show policies and bindings in the order in which they
// were stored: when a last one refuses what it is for, those before it are in force too.
func awaitPolicies(t testing.TB, c client.Client) {
	t.Helper()
	// One of its own for each call: an earlier one may still be in force.
	name := "last-" + rand.String(10)
	fail := admissionv1.Fail
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: &fail,
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			},
		}}},
		Validations: []admissionv1.Validation{{Expression: "object.metadata.name != '" + name + "'"}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}
	for _, obj := range []client.Object{policy, binding} {
		must.Do(t, c.Create(t.Context(), obj))
	}
	refused := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) {
			last = c.Create(ctx, refused.DeepCopy(), client.DryRunAll)
			return last != nil && strings.Contains(last.Error(), "ValidatingAdmissionPolicy '"+name+"'"), nil
		})
	if err != nil {
		t.Fatalf("the admission policies are not in force after %s: creating what the last one refuses says %v", patience, last)
	}
	for _, obj := range []client.Object{binding, policy} {
		must.Do(t, c.Delete(t.Context(), obj))
	}
}
