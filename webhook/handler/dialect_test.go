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

// A pod of another system comes out as one of ours would, and a second round of
// admission changes nothing.
func TestDialects(t *testing.T) {
	for name, c := range map[string]struct {
		limits      []string
		annotations map[string]string
		want        string
		dialect     string
	}{
		"hami": {[]string{"cpu", "1", "nvidia.com/gpu", "2", "nvidia.com/gpumem", "3000"}, nil,
			`{"version":"v1alpha1","containers":{"a":{"gpus":2,"memMiB":3000}}}`, "hami"},
		"gpushare": {[]string{"aliyun.com/gpu-mem", "3"}, map[string]string{"example.com/a": "b"},
			`{"version":"v1alpha1","containers":{"a":{"gpus":1,"memMiB":3072}}}`, "gpushare/GiB"},
		"kai": {nil, map[string]string{"gpu-fraction": "0.5"},
			`{"version":"v1alpha1","containers":{"a":{"gpus":1,"memPercent":50}}}`, "kai"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOf(container("a", c.limits...), container("b"))
			pod.Annotations = c.annotations
			raw := marshal(t, pod)
			if untouched := ours().Handle(context.Background(), request(raw)); !untouched.Allowed || len(untouched.Patch) > 0 {
				t.Fatalf("translated although the dialect is off: %s", untouched.Patch)
			}
			hook := everybodys(t)
			response := hook.Handle(context.Background(), request(raw))
			if !response.Allowed {
				t.Fatal(response.Result)
			}
			patched := apply(t, raw, response)
			got := &corev1.Pod{}
			if err := json.Unmarshal(patched, got); err != nil {
				t.Fatal(err)
			}
			if got.Annotations[api.AnnotationShares] != c.want || got.Annotations[api.AnnotationDialect] != c.dialect {
				t.Errorf("annotations %v", got.Annotations)
			}
			for key, value := range c.annotations {
				if got.Annotations[key] != value {
					t.Errorf("annotation %s is %q", key, got.Annotations[key])
				}
			}
			if !slices.Contains(got.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: api.Gate}) {
				t.Errorf("gates %v", got.Spec.SchedulingGates)
			}
			again := hook.Handle(context.Background(), request(patched))
			if !again.Allowed || len(again.Patch) > 0 || len(again.Warnings) > 0 {
				t.Errorf("a second round says %v, warns %q and patches %s", again.Result, again.Warnings, again.Patch)
			}
		})
	}
}

// Everything that is wrong is said at once, by the translation and after it, and
// what somebody else has said of the dialect is not believed.
func TestDialectRefusals(t *testing.T) {
	pod := podOf(container("a", "nvidia.com/gpu", "17"))
	pod.Spec.HostPID = true
	pod.Annotations = map[string]string{api.AnnotationDialect: "gpushare/MiB"}
	response := everybodys(t).Handle(context.Background(), request(marshal(t, pod)))
	if response.Allowed || len(response.Result.Details.Causes) != 3 {
		t.Fatalf("%+v", response)
	}
	for i, field := range []string{"spec.containers[0].resources.limits[nvidia.com/gpu]", "metadata.annotations[vernier.dev/dialect]", "spec.hostPID"} {
		if got := response.Result.Details.Causes[i].Field; got != field {
			t.Errorf("cause %d is about %s, want %s", i, got, field)
		}
	}
	if !strings.Contains(response.Result.Message, "from 1 to 16") {
		t.Error(response.Result.Message)
	}
}

// What the webhook takes from a device plugin is guarded as before.
func TestDialectGuards(t *testing.T) {
	pod := podOf(container("a", "aliyun.com/gpu-mem", "1"), container("b", "nvidia.com/mig-1g.5gb", "1"))
	response := everybodys(t).Handle(context.Background(), request(marshal(t, pod)))
	if response.Allowed || !strings.Contains(response.Result.Message, "from both") {
		t.Errorf("%+v", response)
	}
}
