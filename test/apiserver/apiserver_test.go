// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package apiserver_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
)

func TestStart(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml"}})
	ledger := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	if err := apiserver.Client(t, cfg).Create(t.Context(), ledger); err != nil {
		t.Errorf("as administrator: %v", err)
	}
	nobody := apiserver.Client(t, apiserver.AsServiceAccount(cfg, "nobody"))
	if err := nobody.Create(t.Context(), ledger.DeepCopy()); !apierrors.IsForbidden(err) {
		t.Errorf("as a service account without rights: %v, want forbidden", err)
	}
}
