// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"regexp"
	"slices"
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
