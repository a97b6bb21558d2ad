// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/manifests"
)

// The admission policies refuse the capabilities that the webhook refuses: they have
// the last word on what another webhook adds after ours, and on kubectl debug.
func TestPolicyNamesTheSameCapabilities(t *testing.T) {
	objects, err := manifests.Read("admission/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)capabilities\.add\.exists\(n, n\.upperAscii\(\)\.replace\('CAP_', ''\) in \[([^]]*)\]`)
	name := regexp.MustCompile(`'([A-Z_]+)'`)
	found := 0
	for _, obj := range objects {
		spec, _ := obj.Object["spec"].(map[string]any)
		validations, _ := spec["validations"].([]any)
		for _, v := range validations {
			expression, _ := v.(map[string]any)["expression"].(string)
			m := list.FindStringSubmatch(expression)
			if m == nil {
				continue
			}
			found++
			var names []string
			for _, n := range name.FindAllStringSubmatch(m[1], -1) {
				names = append(names, n[1])
			}
			if slices.Sort(names); !slices.Equal(names, capabilities) {
				t.Errorf("policy %s refuses\n%q, the webhook\n%q", obj.GetName(), names, capabilities)
			}
		}
	}
	// At creation, and when a container is added to a pod that runs.
	if found != 2 {
		t.Errorf("%d rules name capabilities, want 2", found)
	}
}

// A pod meets the rules of this policy only where its condition holds, which says that one
// of them does not: what the condition leaves out, nothing checks.
func TestConditionHasEveryRule(t *testing.T) {
	objects, err := manifests.Read("admission/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := func(of any, field string) string {
		s, _ := of.(map[string]any)[field].(string)
		return strings.Join(strings.Fields(s), " ")
	}
	found := 0
	for _, obj := range objects {
		spec, _ := obj.Object["spec"].(map[string]any)
		conditions, _ := spec["matchConditions"].([]any)
		if obj.GetName() != "vernier-pods" || len(conditions) == 0 {
			continue
		}
		condition := text(conditions[0], "expression")
		for _, of := range spec["validations"].([]any) {
			rule := text(of, "expression")
			// The first is the condition's first word, and asks no variable.
			if found++; found > 1 && !strings.Contains(condition, rule) {
				t.Errorf("the condition lacks the rule %s", rule)
			}
		}
		for _, of := range spec["variables"].([]any) {
			if !strings.Contains(condition, "'"+text(of, "name")+"': dyn("+text(of, "expression")+")") {
				t.Errorf("the condition lacks the variable %s", text(of, "name"))
			}
		}
	}
	if found < 8 {
		t.Errorf("%d rules, want 8", found)
	}
}
