// SPDX-License-Identifier: Apache-2.0

package annotations_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/plugin"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/annotations"
)

var path = field.NewPath("metadata", "annotations")

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		key, value string
		gated      bool
		refused    string // a part of the error's text
		wantMode   v1alpha1.Mode
	}{
		{key: "vernier.dev/mode", value: "auto", wantMode: v1alpha1.ModeAuto},
		{key: "vernier.dev/mode", value: "", wantMode: v1alpha1.ModeAuto},
		{key: "vernier.dev/mode", value: "limiter", wantMode: v1alpha1.ModeLimiter},
		{key: "vernier.dev/mode", value: "exclusive", wantMode: v1alpha1.ModeExclusive},
		{key: "vernier.dev/mode", value: "mps", wantMode: v1alpha1.ModeMPS},
		{key: "vernier.dev/mode", value: "fast", refused: "unknown: use auto, limiter, mps, mig or exclusive"},
		{key: "vernier.dev/policy", value: "pack"},
		{key: "vernier.dev/policy", value: "spread"},
		{key: "vernier.dev/policy", value: "binpack", refused: "use pack or spread"},
		{key: "vernier.dev/topology", value: "numa"},
		{key: "vernier.dev/topology", value: "nvlink:required"},
		{key: "vernier.dev/topology", value: "near", refused: "use numa, pcie, nvlink or rdma"},
		{key: "vernier.dev/topology", value: "near:required", refused: "use numa, pcie, nvlink or rdma"},
		{key: "vernier.dev/qos", value: "guaranteed"},
		{key: "vernier.dev/qos", value: "opportunistic"},
		{key: "vernier.dev/qos", value: "besteffort", refused: "use guaranteed or opportunistic"},
		{key: "vernier.dev/burst", value: "none"},
		{key: "vernier.dev/burst", value: "idle"},
		{key: "vernier.dev/burst", value: "true", refused: "use none or idle"},
		{key: "vernier.dev/same-gpu", value: "required"},
		{key: "vernier.dev/same-gpu", value: "yes", refused: "use required, or remove the annotation"},
		{key: "vernier.dev/gpu-model", value: "A100,!T4"},
		{key: "vernier.dev/gpu-model", value: "A100,,T4", refused: "write names separated by commas"},
		{key: "vernier.dev/gpu-uuid", value: "GPU-1"},
		{key: "vernier.dev/gpu-uuid", value: "!", refused: "write names separated by commas"},
		{key: "vernier.dev/gpu-count", value: "2", refused: `supported values: "vernier.dev/mode"`},
		{key: "vernier.dev/placement", value: "{}", refused: "only Vernier writes it: remove it"},
		{key: "vernier.dev/placement", value: "{}", gated: true, refused: "only Vernier writes it: remove it"},
		{key: "vernier.dev/shares", value: "{}", refused: "only Vernier writes it: remove it"},
		{key: "vernier.dev/shares", value: "{}", gated: true},
		{key: "nvidia.cdi.k8s.io", value: "nvidia.com/gpu=all", refused: "past the pod's share: remove it"},
		{key: "nvidia.cdi.k8s.io/container.train", value: "nvidia.com/gpu=0", refused: "past the pod's share: remove it"},
		{key: "cdi.k8s.io/gpu", value: "nvidia.com/gpu=0", refused: "past the pod's share: remove it"},
		{key: "tolerate-missing-plugins.noderesource.dev/pod", value: "true", refused: "remove it"},
		{key: "example.com/owner", value: "me"},
	} {
		t.Run(tt.key+"="+tt.value, func(t *testing.T) {
			wishes, errs := annotations.Check(map[string]string{tt.key: tt.value}, tt.gated, path)
			switch {
			case tt.refused == "" && len(errs) > 0:
				t.Errorf("refused: %v", errs)
			case tt.refused != "" && len(errs) != 1:
				t.Errorf("got %v, want one error with %q", errs, tt.refused)
			case tt.refused != "" && (errs[0].Field != "metadata.annotations["+tt.key+"]" || !strings.Contains(errs[0].Error(), tt.refused)):
				t.Errorf("error %q does not name the field or %q", errs[0], tt.refused)
			}
			if tt.wantMode != "" && wishes.Mode != tt.wantMode {
				t.Errorf("mode %q, want %q", wishes.Mode, tt.wantMode)
			}
		})
	}
}

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
			set, errs := annotations.RequirePlugin(tt.user, path)
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
				if err := yaml.Unmarshal([]byte(value), &plugins); err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(plugins, " "); got != want {
					t.Errorf("container %s requires %q, want %q", container, got, want)
				}
			}
			if !strings.Contains(all[v1alpha1.AnnotationRequiredPlugins], `"vernier"`) {
				t.Errorf("the policy would not find our plugin in %q", all[v1alpha1.AnnotationRequiredPlugins])
			}
			if again, _ := annotations.RequirePlugin(all, path); len(again) > 0 {
				t.Errorf("a second round sets %v", again)
			}
		})
	}
}

func TestRequirePluginRefuses(t *testing.T) {
	for _, key := range []string{"required-plugins.noderesource.dev", "required-plugins.noderesource.dev/pod",
		"required-plugins.noderesource.dev/container.a"} {
		_, errs := annotations.RequirePlugin(map[string]string{key: "{a: b}"}, path)
		if len(errs) != 1 || errs[0].Field != "metadata.annotations["+key+"]" || !strings.Contains(errs[0].Error(), "correct or remove it") {
			t.Errorf("%s: %v", key, errs)
		}
	}
}
