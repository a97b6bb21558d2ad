// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// stolen acts with a token of a service account of ours, of the API server's own making, that
// is bound to a node unless that is nil.
func stolen(t *testing.T, cfg *rest.Config, account string, node *corev1.Node) *rest.Config {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if node != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
	}
	of := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: account}}
	must.Do(t, apiserver.Client(t, cfg).SubResource("token").Create(t.Context(), of, request))
	as := rest.AnonymousClientConfig(cfg)
	as.BearerToken = request.Status.Token
	return as
}

// gold is a class, which people make and our parts read.
func gold() *v1alpha1.GPUClass {
	return &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"},
		Spec: v1alpha1.GPUClassSpec{Models: []string{"NVIDIA H100"}, Unit: v1alpha1.GPUUnit{Core: 25}}}
}

// unbounded acts as a service account of ours to which RBAC would allow everything: only
// admission stands in the way.
func unbounded(cfg *rest.Config, account string) *rest.Config {
	return apiserver.As(cfg, "system:serviceaccount:"+v1alpha1.SystemNamespace+":"+account, "system:masters")
}
