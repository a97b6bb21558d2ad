// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
)

// Apply applies files or folders, relative to deploy/, and waits for admission
// policies among them to be in force.
func Apply(t testing.TB, cfg *rest.Config, paths ...string) {
	t.Helper()
	c := Client(t, cfg)
	policies := false
	for _, obj := range Manifests(t, paths...) {
		if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(obj),
			client.FieldOwner("test"), client.ForceOwnership); err != nil {
			t.Fatalf("applying %s %s: %v", obj.GetKind(), obj.GetName(), err)
		}
		policies = policies || obj.GetKind() == "ValidatingAdmissionPolicyBinding"
	}
	if policies {
		awaitPolicies(t, c)
	}
}

// Manifests are the objects in files or folders, relative to deploy/.
func Manifests(t testing.TB, paths ...string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for _, p := range paths {
		path := filepath.Join(deploy(t), p)
		files := []string{path}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			files, _ = filepath.Glob(filepath.Join(path, "*.yaml"))
		}
		for _, file := range files {
			objects = append(objects, read(t, file)...)
		}
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

func read(t testing.TB, file string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for dec := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		obj := &unstructured.Unstructured{}
		switch err := dec.Decode(obj); {
		case errors.Is(err, io.EOF):
			return objects
		case err != nil:
			t.Fatalf("%s: %v", file, err)
		case len(obj.Object) > 0:
			objects = append(objects, obj)
		}
	}
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
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true,
		func(ctx context.Context) (bool, error) {
			last = c.Create(ctx, forged.DeepCopy(), client.DryRunAll)
			return apierrors.IsInvalid(last) || apierrors.IsForbidden(last), nil
		})
	if err != nil {
		t.Fatalf("the admission policies are not in force after 30 s: creating a forged pod says %v", last)
	}
}
