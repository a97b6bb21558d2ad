// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// expressions are those of the policy's rules, each on one line.
func expressions(t *testing.T, policy string) []string {
	t.Helper()
	objects := must.Get(manifests.Read("admission/policy.yaml"))(t)
	var found []string
	for _, obj := range objects {
		spec, _ := obj.Object["spec"].(map[string]any)
		validations, _ := spec["validations"].([]any)
		for _, v := range validations {
			if expression, _ := v.(map[string]any)["expression"].(string); obj.GetName() == policy {
				found = append(found, strings.Join(strings.Fields(expression), " "))
			}
		}
	}
	return found
}

// The admission policies refuse the capabilities that the webhook refuses: they have
// the last word on what another webhook adds after ours, and on kubectl debug.
func TestPolicyNamesTheSameCapabilities(t *testing.T) {
	list := regexp.MustCompile(`capabilities\.add\.exists\(n, size\(n\) > 64 \|\| !n\.matches\('\^\[A-Za-z0-9_\]\+\$'\) \|\| n\.matches\('\(\?i\)\^\(CAP_\)\?\(([A-Z_|]*)\)\$'\)`)
	// At creation, and when a container is added to a pod that runs.
	for _, policy := range []string{"vernier-pods", "vernier-pod-changes"} {
		found := 0
		for _, expression := range expressions(t, policy) {
			if m := list.FindStringSubmatch(expression); m != nil {
				found++
				if names := strings.Split(m[1], "|"); !slices.Equal(names, capabilities) {
					t.Errorf("policy %s refuses\n%q, the webhook\n%q", policy, names, capabilities)
				}
			}
		}
		if found != 1 {
			t.Errorf("%d rules of %s name capabilities, want 1", found, policy)
		}
	}
}

// The policy lets a pod mount what the webhook lets it mount.
func TestPolicyNamesTheSameFolders(t *testing.T) {
	rule := strings.Join(expressions(t, "vernier-pods"), "\n")
	found := regexp.MustCompile(`p\.matches\(r'([^']*)'\)`).FindAllStringSubmatch(rule, -1)
	if len(found) != 3 {
		t.Fatalf("%d regular expressions of folders, want 3: what is above a sensitive one, what is in one, what is harmless", len(found))
	}
	above, in, harmlessIn := regexp.MustCompile(found[0][1]), regexp.MustCompile(found[1][1]), regexp.MustCompile(found[2][1])
	paths := []string{"/", "/data", "/data/", "/mnt/models", "/etc/localtime", "/var/run", "/var/run/x", "/var/lib/x", "/homes", "/home/me"}
	for _, s := range sensitive {
		for _, p := range s.paths {
			paths = append(paths, p, p+"/", p+"/x", p+"x", path.Dir(p), path.Dir(path.Dir(p))+"/x", strings.ReplaceAll(p, ".", "_"))
		}
	}
	for _, h := range harmless {
		paths = append(paths, h, h+"/x", h+"x")
	}
	for _, p := range paths {
		policy := !above.MatchString(p) && !in.MatchString(p) || harmlessIn.MatchString(p)
		if webhook := hostPath(p, nil) == ""; policy != webhook {
			t.Errorf("%s: the policy lets it through: %v, the webhook: %v", p, policy, webhook)
		}
	}
}

// What the policies bound is what the webhook bounds.
func TestPolicyHasTheBounds(t *testing.T) {
	rules := strings.Join(append(expressions(t, "vernier-pods"), expressions(t, "vernier-pod-changes")...), "\n")
	for where, bound := range map[string]int{
		"size(object.spec.initContainers) : 0) <= %d":          api.MaxPodContainers,
		"object.spec.initContainers : []))) > %d":              api.MaxSharePodContainers,
		"size(object.spec.ephemeralContainers) > %d":           2 * api.MaxSharePodContainers,
		"size(variables.ours) > %d ||":                         api.MaxShareContainers,
		"size(object.metadata.annotations) > %d":               api.MaxShareAnnotations,
		"size(object.spec.volumes) > %d":                       api.MaxShareVolumes,
		"exists(h, size(h) > %d":                               api.MaxShareHostPaths,
		"size(p) <= %d":                                        api.MaxHostPath,
		"size(c.securityContext.capabilities.add)).sum() > %d": api.MaxShareCapabilities,
		"all(l, size(l) <= %d":                                 api.MaxPluginLists,
		"size(variables.now[k]) <= %d":                         api.MaxAnnotationBytes,
	} {
		if text := fmt.Sprintf(where, bound); !strings.Contains(rules, text) {
			t.Errorf("no rule says %s", text)
		}
	}
}

// A pod meets the rules of this policy only where its condition holds, which says that one
// of them does not: what the condition leaves out, nothing checks.
func TestConditionHasEveryRule(t *testing.T) {
	objects := must.Get(manifests.Read("admission/policy.yaml"))(t)
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
			// The first two are the condition's first words, and ask no variable.
			switch found++; found {
			case 1:
				if !strings.HasPrefix(condition, "!("+rule+") || ") {
					t.Errorf("the condition does not begin with !(%s)", rule)
				}
			case 2:
				rule = " || " + strings.TrimPrefix(rule, "!") + " || "
				fallthrough
			default:
				if !strings.Contains(condition, rule) {
					t.Errorf("the condition lacks the rule %s", rule)
				}
			}
		}
		for _, of := range spec["variables"].([]any) {
			if !strings.Contains(condition, "'"+text(of, "name")+"': dyn("+text(of, "expression")+")") {
				t.Errorf("the condition lacks the variable %s", text(of, "name"))
			}
		}
	}
	if found < 11 {
		t.Errorf("%d rules, want 11", found)
	}
}
