// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// With a stolen token of the allocator nobody makes, changes or deletes a tide, nor a condition of its
// status that is not the allocator's. A node agent's token changes nothing of one.
func TestHostileTides(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/allocator.yaml", "rbac/node.yaml", "admission/allocator-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	c := apiserver.Client(t, stolen(t, cfg, v1alpha1.AllocatorServiceAccount, nil))
	tide := func(name string) *v1alpha1.Tide {
		return &v1alpha1.Tide{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TideSpec{
			Windows: []v1alpha1.TideWindow{{Schedule: "0 23 * * *", Duration: metav1.Duration{Duration: time.Hour}}}, Lend: v1alpha1.TideAmounts{Core: 80, Mem: 80},
		}}
	}
	night := tide("night")
	must.Do(t, admin.Create(t.Context(), night))
	set := func(kind, want string) {
		t.Helper()
		meta.SetStatusCondition(&night.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: "Test"})
		night.Status.Open, night.Spec.Lend.Core = true, 100
		expect(t, kind, c.Status().Update(t.Context(), night), want)
	}
	set(v1alpha1.ConditionAccepted, "")
	if night.Spec.Lend.Core != 80 || !night.Status.Open || len(night.Status.Conditions) != 1 {
		t.Errorf("written: %+v", night)
	}
	set("Other", "the allocator may change the condition Accepted of a tide, and no other")
	expect(t, "the tide", c.Update(t.Context(), night), "forbidden")
	expect(t, "its end", c.Delete(t.Context(), night), "forbidden")
	expect(t, "another tide", c.Create(t.Context(), tide("mine")), "forbidden")
	agent := apiserver.Client(t, stolen(t, cfg, v1alpha1.NodeServiceAccount, nil))
	expect(t, "the status, by a node agent", agent.Status().Update(t.Context(), night), "forbidden")
}
