// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"regexp"
	"slices"
	"testing"

	"vernier.dev/vernier/test/manifests"
)

// The admission policy refuses the capabilities that the webhook refuses: it has
// the last word on what another webhook adds after ours, and on kubectl debug.
func TestPolicyNamesTheSameCapabilities(t *testing.T) {
	objects, err := manifests.Read("admission/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)capabilities\.add\.exists\(n, n\.upperAscii\(\)\.replace\('CAP_', ''\) in \[([^]]*)\]`)
	name := regexp.MustCompile(`'([A-Z_]+)'`)
	var found []string
	for _, obj := range objects {
		spec, _ := obj.Object["spec"].(map[string]any)
		validations, _ := spec["validations"].([]any)
		for _, v := range validations {
			expression, _ := v.(map[string]any)["expression"].(string)
			if m := list.FindStringSubmatch(expression); m != nil {
				for _, n := range name.FindAllStringSubmatch(m[1], -1) {
					found = append(found, n[1])
				}
			}
		}
	}
	if slices.Sort(found); !slices.Equal(found, capabilities) {
		t.Errorf("deploy/admission/policy.yaml refuses\n%q, the webhook\n%q", found, capabilities)
	}
}
