// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"vernier.dev/vernier/test/must"
)

// A drain keeps a PodDisruptionBudget as the cluster's own controllers keep it: while the
// budget allows no disruption the pod runs on, and the drain says what it waits for.
func TestDrainKeepsBudgets(t *testing.T) {
	p := newPod("budgeted").share(30, 30).on(small)
	p.Labels = map[string]string{"app": "budgeted"}
	running := awaitReady(t, create(t, p))
	check := unmoved(t, running)
	budgets := sys.Kube.PolicyV1().PodDisruptionBudgets(namespace)
	must.Get(budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "budgeted"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: ptr(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: p.Labels},
		},
	}, metav1.CreateOptions{}))(t)
	await(t, "the disruption controller to have counted", func() (bool, string) {
		b, err := budgets.Get(t.Context(), "budgeted", metav1.GetOptions{})
		return err == nil && b.Status.CurrentHealthy == 1 && b.Status.DisruptionsAllowed == 0, ""
	})

	name := small + "/0"
	uncordoned(t, name)
	out, err := sys.Shell(t.Context(), "kubectl vernier drain "+name+" --force --timeout 2s")
	if err == nil || !strings.Contains(out, "disruption budget") || strings.Contains(out, "drained") {
		t.Errorf("with a budget: %v\n%s", err, out)
	}
	check()
	must.Do(t, budgets.Delete(t.Context(), "budgeted", metav1.DeleteOptions{}))
	if out := shell(t, "kubectl vernier drain "+name+" --force --timeout 2m --grace-period 1"); !strings.Contains(out, "drained") {
		t.Error(out)
	}
}
