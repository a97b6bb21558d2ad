// SPDX-License-Identifier: Apache-2.0

package podtemplate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/slim"
)

// More memory than any GPU has may come yet, so it is warned of, also where only the
// containers together ask for it.
func TestSameGPUBeyondTheFleet(t *testing.T) {
	half := corev1.ResourceRequirements{Limits: corev1.ResourceList{api.ResourceMemMiB: resource.MustParse("60")}}
	pod := &slim.Pod{Metadata: &slim.Metadata{Annotations: map[string]string{api.AnnotationSameGPU: api.SameGPURequired}},
		Spec: slim.Spec{Containers: []slim.Container{{Name: "a", Resources: half}, {Name: "b", Resources: half}}}}
	for mem, warned := range map[api.MiB]bool{0: false, 119: true, 120: false} {
		f := review(pod, "team", fleet.Size{GPUs: 1, Mem: mem}, Rules{})
		if said := strings.Contains(strings.Join(f.warnings, ""), "the pod needs 120 MiB on one GPU"); len(f.errs) > 0 || said != warned {
			t.Errorf("%d MiB: %v, warnings %q", mem, f.errs, f.warnings)
		}
	}
}
