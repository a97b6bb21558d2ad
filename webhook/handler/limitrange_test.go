// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"strings"
	"testing"
)

// What a LimitRange has set is named, by what LimitRanger writes of it. Anybody may write that,
// so it changes nothing.
func TestLimitRangeIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		limits    []string
		says      string // the annotation
		container string
		want      string
	}{
		"a sidecar":             {limits: []string{"vernier.dev/gpu-core", "50"}, says: "LimitRanger plugin set: cpu, vernier.dev/gpu-core request for container b; cpu, vernier.dev/gpu-core limit for container b", want: "spec.containers[1].resources.limits[vernier.dev/gpu-core]: a LimitRange gives container b 50, which the pod does not ask for. Its max is the default too, unless the LimitRange has default vernier.dev/gpu-core: 0"},
		"memory":                {limits: []string{"vernier.dev/gpu-core", "20", "vernier.dev/gpu-mem-mib", "20480"}, says: "LimitRanger plugin set: vernier.dev/gpu-mem-mib limit for container b", want: "limits[vernier.dev/gpu-mem-mib]: a LimitRange gives container b 20480"},
		"of a dialect":          {limits: []string{"nvidia.com/gpumem", "1000"}, says: "LimitRanger plugin set: nvidia.com/gpumem limit for container b", want: "limits[nvidia.com/gpumem]: a LimitRange gives container b 1k"},
		"0, as it should be":    {limits: []string{"vernier.dev/gpu-core", "0"}, says: "LimitRanger plugin set: vernier.dev/gpu-core limit for container b"},
		"what was asked for":    {limits: []string{"vernier.dev/gpu-core", "50"}, says: "LimitRanger plugin set: cpu limit for container b"},
		"an init container's":   {limits: []string{"vernier.dev/gpu-core", "50"}, says: "LimitRanger plugin set: vernier.dev/gpu-core limit for init container b"},
		"rubbish":               {limits: []string{"vernier.dev/gpu-core", "50"}, says: " limit for ; , limit for container b;"},
		"with the pod's errors": {limits: []string{"vernier.dev/gpu-core", "20", "nvidia.com/gpu", "1"}, says: "LimitRanger plugin set: vernier.dev/gpu-core limit for container b", want: "a LimitRange gives container b 20"},
	} {
		pod := podOf(container("a", "vernier.dev/gpu-core", "1", "vernier.dev/gpu", "1"), container("b", append(c.limits, "vernier.dev/gpu", "0")...))
		plain := everybodys(t).Handle(context.Background(), request(marshal(t, pod)))
		pod.Annotations = map[string]string{"kubernetes.io/limit-ranger": c.says}
		response := everybodys(t).Handle(context.Background(), request(marshal(t, pod)))
		if said := strings.Join(response.Warnings, "\n"); !strings.Contains(said, c.want) || (c.want == "") != (said == "") {
			t.Errorf("%s: warnings %q, want %q", name, said, c.want)
		}
		if response.Allowed != plain.Allowed || name != "with the pod's errors" && !plain.Allowed {
			t.Errorf("%s: %v, without the annotation %v", name, response.Result, plain.Result)
		}
	}
}

// Of a long annotation the beginning is read.
func TestHostileLimitRange(t *testing.T) {
	const set = "vernier.dev/gpu-core limit for container b"
	for says, want := range map[string]int{
		set + strings.Repeat("; x limit for container y", 8_000):        1,
		strings.Repeat("x limit for container y; ", 8_000) + set:        0,
		strings.Repeat("vernier.dev/gpu-core, ", 8_000) + "x limit for": 0,
	} {
		pod := podOf(container("b", "vernier.dev/gpu-core", "50"))
		pod.Annotations = map[string]string{"kubernetes.io/limit-ranger": says}
		response := ours().Handle(context.Background(), request(marshal(t, pod)))
		if !response.Allowed || len(response.Warnings) != want {
			t.Errorf("%.60s…: %v, %d warnings, want %d", says, response.Result, len(response.Warnings), want)
		}
	}
}
