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

// What can never be is refused; what says nothing, and what no node has now, is warned of.
func TestTopology(t *testing.T) {
	hgx := fleet.Size{GPUs: 8, Mem: 81920, NVLink: 8, PCIe: 2, NUMA: 4}
	for name, tt := range map[string]struct {
		wish        string
		gpus        []string // of each container
		annotations map[string]string
		known       fleet.Size
		warned, err string
	}{
		"preferred":                 {wish: "nvlink", gpus: []string{"2"}, known: fleet.Size{GPUs: 8}},
		"there is one":              {wish: "nvlink:required", gpus: []string{"8"}, known: hgx},
		"nothing known":             {wish: "nvlink:required", gpus: []string{"8"}},
		"too many":                  {wish: "pcie:required", gpus: []string{"4", "1"}, known: hgx, warned: "needs 5 GPUs with only PCIe switches between them, and no node has more than 2: the pod waits"},
		"no driver says":            {wish: "rdma:required", gpus: []string{"1"}, known: hgx, warned: "needs GPUs near an RDMA device, and no node's driver reports any: the pod waits"},
		"one GPU":                   {wish: "nvlink:required", gpus: []string{"1"}, warned: `"nvlink:required" has no effect, since the pod is on one GPU`},
		"one GPU and its CPUs":      {wish: "numa:required", gpus: []string{"1"}, known: hgx},
		"one GPU for all":           {wish: "nvlink", gpus: []string{"1", "1"}, annotations: map[string]string{api.AnnotationSameGPU: api.SameGPURequired}, warned: `"nvlink" has no effect`},
		"too many together":         {wish: "numa:required", gpus: []string{"1", "1", "3"}, known: hgx, warned: "needs 5 GPUs of one NUMA node, and no node has more than 4: the pod waits"},
		"several of one GPU":        {wish: "numa:required", gpus: []string{"1", "1"}, known: fleet.Size{GPUs: 8}, warned: "needs GPUs of one NUMA node, and no node's driver reports any: the pod waits"},
		"more than a node may have": {wish: "numa:required", gpus: []string{"16", "16", "1"}, err: "need at least 33 GPUs, and a node has 32 at most. Ask for less"},
		"as many as it may":         {wish: "numa:required", gpus: []string{"16", "16"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &slim.Pod{Metadata: &slim.Metadata{Annotations: map[string]string{api.AnnotationTopology: tt.wish}}}
			for key, value := range tt.annotations {
				pod.Metadata.Annotations[key] = value
			}
			for i, n := range tt.gpus {
				limits := corev1.ResourceList{api.ResourceCore: resource.MustParse(n + "00")}
				if len(tt.annotations) > 0 {
					limits = corev1.ResourceList{api.ResourceCore: resource.MustParse("30")}
				}
				pod.Spec.Containers = append(pod.Spec.Containers, slim.Container{Name: string(rune('a' + i)), Resources: corev1.ResourceRequirements{Limits: limits}})
			}
			f := review(pod, "team", tt.known, Rules{})
			warned := strings.Join(f.warnings, "\n")
			if (warned == "") != (tt.warned == "") || !strings.Contains(warned, tt.warned) {
				t.Errorf("warnings %q, want %q", warned, tt.warned)
			}
			switch {
			case tt.err == "" && len(f.errs) > 0:
				t.Error(f.errs)
			case tt.err != "" && (len(f.errs) != 1 || f.errs[0].Field != "metadata.annotations[vernier.dev/topology]" || !strings.Contains(f.errs[0].Error(), tt.err)):
				t.Errorf("%v, want %q", f.errs, tt.err)
			}
		})
	}
}
