// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"vernier.dev/vernier/api/v1alpha1"
)

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
		{key: "vernier.dev/qos", value: "besteffort", refused: "use guaranteed, burstable or opportunistic"},
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
			wishes, errs := Check(map[string]string{tt.key: tt.value}, tt.gated, field.NewPath("metadata", "annotations"))
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
