// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/plugin"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/guard"
)

var path = field.NewPath("metadata", "annotations")

// Invariant 2: whatever form of the annotation containerd takes as the effective
// one for a container, our plugin is in it, and so are the user's.
func TestRequirePlugin(t *testing.T) {
	const key = "required-plugins.noderesource.dev"
	for name, tt := range map[string]struct {
		user map[string]string
		// want are the plugins in force for container a and for container b.
		a, b string
	}{
		"none":                {nil, "vernier", "vernier"},
		"pod":                 {map[string]string{key + "/pod": `["x"]`}, "x vernier", "x vernier"},
		"pod, ours":           {map[string]string{key + "/pod": `["vernier"]`}, "vernier", "vernier"},
		"pod, ours unquoted":  {map[string]string{key + "/pod": `[vernier, x]`}, "vernier x", "vernier x"},
		"pod, block style":    {map[string]string{key + "/pod": "- x\n- y"}, "x y vernier", "x y vernier"},
		"pod, empty":          {map[string]string{key + "/pod": ""}, "vernier", "vernier"},
		"plain":               {map[string]string{key: `["x"]`}, "x vernier", "x vernier"},
		"plain and pod":       {map[string]string{key: `["x"]`, key + "/pod": `["y"]`}, "y vernier", "y vernier"},
		"container":           {map[string]string{key + "/container.a": `["x"]`}, "x vernier", "vernier"},
		"container, empty":    {map[string]string{key + "/container.a": `[]`}, "vernier", "vernier"},
		"container and plain": {map[string]string{key + "/container.a": `["x"]`, key: `["y"]`}, "x vernier", "y vernier"},
	} {
		t.Run(name, func(t *testing.T) {
			set, errs := guard.RequirePlugin(tt.user, path)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			all := maps.Clone(tt.user)
			if all == nil {
				all = map[string]string{}
			}
			maps.Copy(all, set)
			for container, want := range map[string]string{"a": tt.a, "b": tt.b} {
				// containerd's own look-up and its own reading.
				value, _ := plugin.GetEffectiveAnnotation(&api.PodSandbox{Annotations: all}, plugin.RequiredPluginsAnnotation, container)
				var plugins []string
				must.Do(t, yaml.Unmarshal([]byte(value), &plugins))
				if got := strings.Join(plugins, " "); got != want {
					t.Errorf("container %s requires %q, want %q", container, got, want)
				}
			}
			if !strings.Contains(all[v1alpha1.AnnotationRequiredPlugins], `"vernier"`) {
				t.Errorf("the policy would not find our plugin in %q", all[v1alpha1.AnnotationRequiredPlugins])
			}
			if again, _ := guard.RequirePlugin(all, path); len(again) > 0 {
				t.Errorf("a second round sets %v", again)
			}
		})
	}
}

func TestRequirePluginRefuses(t *testing.T) {
	for _, key := range []string{"required-plugins.noderesource.dev", "required-plugins.noderesource.dev/pod",
		"required-plugins.noderesource.dev/container.a"} {
		_, errs := guard.RequirePlugin(map[string]string{key: "{a: b}"}, path)
		if len(errs) != 1 || errs[0].Field != "metadata.annotations["+key+"]" || !strings.Contains(errs[0].Error(), "correct or remove it") {
			t.Errorf("%s: %v", key, errs)
		}
	}
}
