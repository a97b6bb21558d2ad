// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	api "vernier.dev/vernier/api/v1alpha1"
)

// 0 of a resource is none of it, in our own words, in those of a dialect, and of NVIDIA's
// device plugin beside a share.
func TestZeroIsNone(t *testing.T) {
	for name, c := range map[string]struct {
		containers []corev1.Container
		shares     string // as the webhook writes them; empty where the pod asks for none
		warns      string
		// gone are resources that are taken out.
		gone []corev1.ResourceName
	}{
		"ours":                           {containers: []corev1.Container{container("a", "vernier.dev/gpu-core", "0", "vernier.dev/gpu-mem-mib", "0")}},
		"ours in a sidecar":              {containers: []corev1.Container{container("a", "vernier.dev/gpu-core", "20", "vernier.dev/gpu-mem-mib", "0", "vernier.dev/gpu", "0"), container("b", "vernier.dev/gpu-core", "0")}, shares: `"a":{"gpus":1,"core":20,"memPercent":20}`},
		"NVIDIA's beside ours":           {containers: []corev1.Container{container("a", "vernier.dev/gpu-core", "20", "nvidia.com/gpu", "0", "nvidia.com/gpumem", "0")}, shares: `"a":{"gpus":1,"core":20,"memPercent":20}`},
		"HAMi's":                         {containers: []corev1.Container{container("a", "nvidia.com/gpu", "0", "nvidia.com/gpumem", "0")}},
		"HAMi's in a sidecar":            {containers: []corev1.Container{container("a", "nvidia.com/gpu", "1", "nvidia.com/gpumem", "1000"), container("b", "nvidia.com/gpu", "0", "nvidia.com/gpumem", "0")}, shares: `"a":{"gpus":1,"memMiB":1000}`},
		"amounts of no GPU":              {containers: []corev1.Container{container("a", "nvidia.com/gpu", "0", "nvidia.com/gpumem", "1000")}, warns: "limits[nvidia.com/gpumem]: removed and not honoured: 0 nvidia.com/gpu are asked for", gone: []corev1.ResourceName{"nvidia.com/gpumem"}},
		"amounts of no GPU of Volcano's": {containers: []corev1.Container{container("a", "volcano.sh/vgpu-number", "0", "volcano.sh/vgpu-cores", "10")}, warns: "limits[volcano.sh/vgpu-cores]: removed", gone: []corev1.ResourceName{"volcano.sh/vgpu-cores"}},
		"amounts of no GPU beside a GPU": {containers: []corev1.Container{container("a", "nvidia.com/gpu", "1"), container("b", "nvidia.com/gpu", "0", "nvidia.com/gpucores", "10")}, shares: `"a":{"gpus":1,"memPercent":100}`, warns: "containers[1].resources.limits[nvidia.com/gpucores]: removed"},
		"compute of no memory":           {containers: []corev1.Container{container("a", "aliyun.com/gpu-mem", "0", "aliyun.com/gpu-count", "1")}, warns: "limits[aliyun.com/gpu-count]: removed", gone: []corev1.ResourceName{"aliyun.com/gpu-count"}},
		"memory of no cores":             {containers: []corev1.Container{container("a", "tencent.com/vcuda-core", "0", "tencent.com/vcuda-memory", "4")}, warns: "limits[tencent.com/vcuda-memory]: removed", gone: []corev1.ResourceName{"tencent.com/vcuda-memory"}},
	} {
		t.Run(name, func(t *testing.T) {
			raw := marshal(t, podOf(c.containers...))
			response := everybodys(t).Handle(context.Background(), request(raw))
			if !response.Allowed {
				t.Fatal(response.Result)
			}
			patched, got := apply(t, raw, response), &corev1.Pod{}
			if err := json.Unmarshal(patched, got); err != nil {
				t.Fatal(err)
			}
			want := ""
			if c.shares != "" {
				want = `{"version":"v1alpha1","containers":{` + c.shares + `}}`
			}
			if got.Annotations[api.AnnotationShares] != want || slices.Contains(got.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: api.Gate}) != (want != "") {
				t.Errorf("shares %s, gates %v, want %s", got.Annotations[api.AnnotationShares], got.Spec.SchedulingGates, want)
			}
			if said := strings.Join(response.Warnings, "\n"); !strings.Contains(said, c.warns) || (c.warns == "") != (said == "") {
				t.Errorf("warnings %q, want %q", said, c.warns)
			}
			for _, name := range c.gone {
				r := got.Spec.Containers[0].Resources
				if limit, request := r.Limits[name], r.Requests[name]; !limit.IsZero() || !request.IsZero() {
					t.Errorf("%s is left, and no node has it", name)
				}
			}
			if again := everybodys(t).Handle(context.Background(), request(patched)); !again.Allowed || len(again.Patch) > 0 {
				t.Errorf("a second round says %v and patches %s", again.Result, again.Patch)
			}
		})
	}
}
