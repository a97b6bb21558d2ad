// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/manifests"
)

// Apply applies files or folders, relative to deploy/manifests, and waits for admission
// policies among them to be in force.
func Apply(t testing.TB, cfg *rest.Config, paths ...string) {
	t.Helper()
	c, objects := Client(t, cfg), Manifests(t, paths...)
	if err := manifests.Apply(t.Context(), c, objects...); err != nil {
		t.Fatal(err)
	}
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
	objects, err := manifests.Read(paths...)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// Client is a client without a cache: it sees what the server has now.
func Client(t testing.TB, cfg *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(kubernetes.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// awaitPolicies waits until a forged pod is refused: the API server takes up
// policies from its watch, a moment after they are stored.
func awaitPolicies(t testing.TB, c client.Client) {
	t.Helper()
	forged := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "forged", Namespace: metav1.NamespaceDefault,
			Annotations: map[string]string{v1alpha1.AnnotationPlacement: "{}"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) {
			last = c.Create(ctx, forged.DeepCopy(), client.DryRunAll)
			return apierrors.IsInvalid(last) || apierrors.IsForbidden(last), nil
		})
	if err != nil {
		t.Fatalf("the admission policies are not in force after %s: creating a forged pod says %v", patience, last)
	}
}
