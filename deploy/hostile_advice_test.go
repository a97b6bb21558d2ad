// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// The allocator alone writes advice, by which new pods may be made smaller: no other part's identity
// does, and no administrator. Its definition bounds what the allocator writes.
func TestHostileAdvice(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/allocator.yaml", "admission/allocator-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	must.Do(t, admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}))
	advice := func(set func(*v1alpha1.SliceAdviceStatus)) *v1alpha1.SliceAdvice {
		o := &v1alpha1.SliceAdvice{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "deployment.web.main"}}
		o.Status = v1alpha1.SliceAdviceStatus{Workload: "Deployment/web", Container: "main", Confidence: v1alpha1.ConfidenceHigh, Advice: v1alpha1.GPUAmounts{Core: 1, MemMiB: 1}}
		if set != nil {
			set(&o.Status)
		}
		return o
	}
	allocator := apiserver.Client(t, stolen(t, cfg, v1alpha1.AllocatorServiceAccount, nil))
	const alone = "a SliceAdvice is written by the allocator only"
	expect(t, "advice, by an administrator", admin.Create(t.Context(), advice(nil)), alone)
	for _, account := range []string{v1alpha1.NodeServiceAccount, v1alpha1.WebhookServiceAccount} {
		expect(t, "advice, by "+account, apiserver.Client(t, unbounded(cfg, account)).Create(t.Context(), advice(nil)), alone)
	}
	for what, set := range map[string]func(*v1alpha1.SliceAdviceStatus){
		"more than a GPU":      func(s *v1alpha1.SliceAdviceStatus) { s.Advice.Core = 101 },
		"less than nothing":    func(s *v1alpha1.SliceAdviceStatus) { s.Advice.MemMiB = -1 },
		"unknown confidence":   func(s *v1alpha1.SliceAdviceStatus) { s.Confidence = "certain" },
		"a long checkpoint":    func(s *v1alpha1.SliceAdviceStatus) { s.Checkpoint = strings.Repeat("x", 4097) },
		"reasons without end":  func(s *v1alpha1.SliceAdviceStatus) { s.Reasons = make([]string, 5) },
		"a reason without end": func(s *v1alpha1.SliceAdviceStatus) { s.Reasons = []string{strings.Repeat("x", 257)} },
	} {
		expect(t, what, allocator.Create(t.Context(), advice(set)), "is invalid")
	}
	o := advice(nil)
	expect(t, "advice, by the allocator", allocator.Create(t.Context(), o), "")
	o.Status.Slices = 2
	expect(t, "its change", allocator.Update(t.Context(), o), "")
	o.Status.Advice.Core = 100
	expect(t, "its change by an administrator", admin.Update(t.Context(), o), alone)
	expect(t, "its end", allocator.Delete(t.Context(), o), "")
}
