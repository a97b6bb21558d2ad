// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// A pod that the webhook has not seen is made again, until it has; a mistake in the pod is
// told at once.
func TestCreateUntilTheWebhookIsHeard(t *testing.T) {
	kube := fake.NewClientset()
	answers := []error{
		apierrors.NewInternalError(errors.New(`failed calling webhook "pods.vernier.dev": connection refused`)),
		apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("ValidatingAdmissionPolicy 'vernier-pods' denied request")),
		nil, // created, and unseen by the webhook
		nil,
	}
	asked := 0
	kube.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		if asked++; asked > len(answers) {
			return true, nil, errors.New("asked once more")
		}
		if asked == len(answers) {
			pod.Annotations = map[string]string{v1alpha1.AnnotationShares: "{}"}
		}
		err := answers[asked-1]
		return err != nil, nil, err
	})
	r := request{"p", limits(v1alpha1.ResourceCore, 10), nil}
	must.Do(t, create(t.Context(), &system.System{Kube: kube}, r))
	made, err := kube.CoreV1().Pods(namespace).Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil || made.Annotations[v1alpha1.AnnotationShares] == "" || asked != len(answers) {
		t.Errorf("after %d creations: %v, %v", asked, made, err)
	}

	answers = []error{apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("0 is less than 1"))}
	asked = 0
	if err := create(t.Context(), &system.System{Kube: kube}, r); err == nil || !strings.Contains(err.Error(), "less than 1") || asked != 1 {
		t.Errorf("after %d creations: %v", asked, err)
	}
}
