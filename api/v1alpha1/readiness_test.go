// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Slices are granted where the agent is ready and not known to be away; what is said
// otherwise has the agent's own words first.
func TestReadiness(t *testing.T) {
	is := func(kind string, status metav1.ConditionStatus, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: "R", Message: message}
	}
	ready, broken := is(ConditionReady, metav1.ConditionTrue, ""), is(ConditionReady, metav1.ConditionFalse, "no driver")
	there, away := is(ConditionAgentReachable, metav1.ConditionTrue, ""), is(ConditionAgentReachable, metav1.ConditionFalse, "it crashes")
	for name, c := range map[string]struct {
		conditions []metav1.Condition
		takes      bool
		says       string
	}{
		"nothing said":       {},
		"ready":              {conditions: []metav1.Condition{ready}, takes: true},
		"ready and there":    {conditions: []metav1.Condition{ready, there}, takes: true},
		"ready, said before": {conditions: []metav1.Condition{ready, away}, says: "it crashes"},
		"broken":             {conditions: []metav1.Condition{broken, there}, says: "no driver"},
		"broken and away":    {conditions: []metav1.Condition{away, broken}, says: "no driver; it crashes"},
		"only away":          {conditions: []metav1.Condition{away}, says: "it crashes"},
		"only there":         {conditions: []metav1.Condition{there}},
	} {
		s := SliceLedgerStatus{Conditions: c.conditions}
		if got := s.TakesSlices(); got != c.takes {
			t.Errorf("%s: takes slices: %v", name, got)
		}
		if got := s.Readiness(); got != nil && got.Message != c.says || got == nil && c.says != "" {
			t.Errorf("%s: %+v, want %q", name, got, c.says)
		}
	}
}
