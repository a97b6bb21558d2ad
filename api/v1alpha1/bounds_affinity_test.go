// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each field counts, up to the bound and not beyond it, and one large value is too large.
func TestCheckSchedulingTerms(t *testing.T) {
	selector := func(n int) *metav1.LabelSelector {
		s := &metav1.LabelSelector{}
		for i := range n {
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: fmt.Sprint(i), Operator: metav1.LabelSelectorOpExists})
		}
		return s
	}
	term := func(n int) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: make([]corev1.NodeSelectorRequirement, n)}
	}
	podTerm := func(n int) corev1.PodAffinityTerm { return corev1.PodAffinityTerm{LabelSelector: selector(n)} }
	of := func(a corev1.Affinity) corev1.PodSpec { return corev1.PodSpec{Affinity: &a} }
	for name, pod := range map[string]func(n int) corev1.PodSpec{
		"nodeSelector": func(n int) (p corev1.PodSpec) {
			p.NodeSelector = map[string]string{}
			for i := range n {
				p.NodeSelector[fmt.Sprint(i)] = ""
			}
			return p
		},
		"tolerations": func(n int) corev1.PodSpec { return corev1.PodSpec{Tolerations: make([]corev1.Toleration, n)} },
		"spread": func(n int) corev1.PodSpec {
			return corev1.PodSpec{TopologySpreadConstraints: make([]corev1.TopologySpreadConstraint, n)}
		},
		"spread's selector": func(n int) corev1.PodSpec {
			return corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{LabelSelector: selector(n - 1)}}}
		},
		"node affinity": func(n int) corev1.PodSpec {
			return of(corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term(n - 1)}}}})
		},
		"preferred node affinity": func(n int) corev1.PodSpec {
			return of(corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Preference: term(n - 1)}}}})
		},
		"pod affinity": func(n int) corev1.PodSpec {
			return of(corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: make([]corev1.PodAffinityTerm, n)}})
		},
		"pod affinity's selector": func(n int) corev1.PodSpec {
			return of(corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{podTerm(n - 1)}}})
		},
		"anti-affinity's selector": func(n int) corev1.PodSpec {
			return of(corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{podTerm(n - 1)}}})
		},
		"preferred anti-affinity's selector": func(n int) corev1.PodSpec {
			return of(corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{PodAffinityTerm: podTerm(n - 1)}}}})
		},
	} {
		for n, wants := range map[int]string{MaxSchedulingTerms: "", MaxSchedulingTerms + 1: "65 terms and requirements"} {
			p := pod(n)
			if err := CheckSchedulingTerms(&p); (err == nil) != (wants == "") || err != nil && !strings.Contains(err.Error(), wants) {
				t.Errorf("%s with %d: %v, want %q", name, n, err, wants)
			}
		}
	}
	long := strings.Repeat("x", MaxSchedulingBytes+1)
	for name, pod := range map[string]corev1.PodSpec{
		"nodeSelector":  {NodeSelector: map[string]string{"k": long}},
		"tolerations":   {Tolerations: []corev1.Toleration{{Value: long}}},
		"spread":        {TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{TopologyKey: long}}},
		"node affinity": of(corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Values: []string{long}}}}}}}}),
	} {
		if err := CheckSchedulingTerms(&pod); err == nil || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("long %s: %v", name, err)
		}
	}
}

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
