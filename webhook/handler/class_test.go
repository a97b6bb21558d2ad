// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"vernier.dev/vernier/api/classes"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/demand"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/handler"
	"vernier.dev/vernier/webhook/podtemplate"
)

func gpuClass(name string, unit api.GPUUnit, mode api.Mode, topology string) api.GPUClass {
	return api.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: api.GPUClassSpec{Models: []string{"NVIDIA H100 80GB HBM3"}, Unit: unit, Mode: mode, Topology: topology}}
}

// classed is the handler where there are classes.
func classed(rules podtemplate.Rules, more ...api.GPUClass) *admission.Webhook {
	rules.Classes = classes.Of(append(more, gpuClass("gold", api.GPUUnit{Core: 25, MemMiB: 20480}, api.ModeAuto, ""),
		gpuClass("whole", api.GPUUnit{Core: 100}, api.ModeExclusive, ""), gpuClass("shared", api.GPUUnit{Core: 10, MemMiB: 1024}, api.ModeMPS, ""),
		gpuClass("near", api.GPUUnit{Core: 100}, api.ModeAuto, "pcie"))...)
	return &admission.Webhook{Handler: handler.Pods(podtemplate.New(&fleet.Fleet{}, rules))}
}

// A container that asks for units of a class gets what they are, in requests and limits beside
// the units, so that a quota counts both; a second round of admission changes nothing.
func TestClasses(t *testing.T) {
	hook := classed(podtemplate.Rules{Minimum: demand.Minimum{Percent: 50}, ComputeShares: demand.ComputeShares{"team": {Required: true}}})
	for name, tt := range map[string]struct {
		limits      []string
		annotations map[string]string
		shares      string // of the container
		written     map[corev1.ResourceName]int64
		refused     string
	}{
		"a part of a GPU": {limits: []string{"vernier.dev/gpu-gold", "2", "cpu", "1"}, shares: `{"gpus":1,"core":50,"memMiB":40960}`,
			written: map[corev1.ResourceName]int64{api.ResourceCore: 50, api.ResourceMemMiB: 40960, api.ResourceGPUs: 1}},
		"two GPUs": {limits: []string{"vernier.dev/gpu-gold", "8"}, shares: `{"gpus":2,"core":100,"memMiB":81920}`,
			written: map[corev1.ResourceName]int64{api.ResourceCore: 200, api.ResourceMemMiB: 163840, api.ResourceGPUs: 2}},
		"whole GPUs": {limits: []string{"vernier.dev/gpu-whole", "2"}, shares: `{"gpus":2,"core":100,"memPercent":100}`,
			written: map[corev1.ResourceName]int64{api.ResourceCore: 200, api.ResourceMemPercent: 200, api.ResourceGPUs: 2}},
		"a narrower model":    {limits: []string{"vernier.dev/gpu-gold", "1"}, annotations: map[string]string{api.AnnotationGPUModel: "H100"}, shares: `{"gpus":1,"core":25,"memMiB":20480}`, written: map[corev1.ResourceName]int64{api.ResourceMemMiB: 20480}},
		"a mode of its own":   {limits: []string{"vernier.dev/gpu-gold", "1"}, annotations: map[string]string{api.AnnotationMode: "limiter"}, shares: `{"gpus":1,"core":25,"memMiB":20480}`, written: map[corev1.ResourceName]int64{api.ResourceMemMiB: 20480}},
		"the class's mode":    {limits: []string{"vernier.dev/gpu-shared", "1"}, annotations: map[string]string{api.AnnotationMode: "mps"}, shares: `{"gpus":1,"core":10,"memMiB":1024}`, written: map[corev1.ResourceName]int64{api.ResourceMemMiB: 1024}},
		"near":                {limits: []string{"vernier.dev/gpu-near", "2"}, shares: `{"gpus":2,"core":100,"memPercent":100}`, written: map[corev1.ResourceName]int64{api.ResourceCore: 200, api.ResourceMemPercent: 200}},
		"nearer":              {limits: []string{"vernier.dev/gpu-near", "2"}, annotations: map[string]string{api.AnnotationTopology: "nvlink"}, shares: `{"gpus":2,"core":100,"memPercent":100}`, written: map[corev1.ResourceName]int64{api.ResourceCore: 200, api.ResourceMemPercent: 200}},
		"no number of GPUs":   {limits: []string{"vernier.dev/gpu-gold", "6"}, refused: `spec.containers[0].resources.limits[vernier.dev/gpu-gold]: Invalid value: "6": 6 units of 25 % are more than one GPU and no whole number of GPUs: ask for 4 or 8`},
		"a part of a unit":    {limits: []string{"vernier.dev/gpu-gold", "500m"}, refused: "must be a whole number"},
		"no units of a class": {limits: []string{"vernier.dev/gpu-gold", "1", "vernier.dev/gpu-near", "0", "vernier.dev/gpu-core", "0"}, shares: `{"gpus":1,"core":25,"memMiB":20480}`, written: map[corev1.ResourceName]int64{api.ResourceCore: 25, api.ResourceMemMiB: 20480}},
		"unknown":             {limits: []string{"vernier.dev/gpu-bronze", "1"}, refused: `Unsupported value: "vernier.dev/gpu-bronze": supported values: "vernier.dev/gpu-core", "vernier.dev/gpu-mem", "vernier.dev/gpu-mem-mib", "vernier.dev/gpu", "vernier.dev/idle-core", "vernier.dev/idle-mem-mib", or of a GPUClass: vernier.dev/gpu-gold`},
		"two classes":         {limits: []string{"vernier.dev/gpu-gold", "1", "vernier.dev/gpu-near", "1"}, refused: "limits[vernier.dev/gpu-near]: Forbidden: vernier.dev/gpu-gold says all that the container asks for: keep one of the two"},
		"an amount beside it": {limits: []string{"vernier.dev/gpu-gold", "1", "vernier.dev/gpu-core", "25"}, refused: "limits[vernier.dev/gpu-core]: Forbidden: vernier.dev/gpu-gold says all that the container asks for"},
		"another mode":        {limits: []string{"vernier.dev/gpu-shared", "1"}, annotations: map[string]string{api.AnnotationMode: "limiter"}, refused: "limits[vernier.dev/gpu-shared]: Forbidden: GPUClass shared has mode mps, and vernier.dev/mode or another class of the pod has limiter: remove one of the two"},
		"farther":             {limits: []string{"vernier.dev/gpu-near", "2"}, annotations: map[string]string{api.AnnotationTopology: "numa"}, refused: "GPUClass near has topology pcie, and vernier.dev/topology or another class of the pod has numa, which is not as near: remove one of the two"},
		"a part, exclusive":   {limits: []string{"vernier.dev/gpu-gold", "1"}, annotations: map[string]string{api.AnnotationMode: "exclusive"}, refused: "asks for a part of a GPU"},
	} {
		for _, requests := range []bool{true, false} {
			pod := podOf(container("train", tt.limits...))
			pod.Annotations = tt.annotations
			if !requests {
				pod.Spec.Containers[0].Resources.Requests = nil
			}
			req := request(marshal(t, pod))
			req.Namespace = "team"
			response := hook.Handle(context.Background(), req)
			if !response.Allowed || tt.refused != "" {
				if response.Allowed || !strings.Contains(response.Result.Message, tt.refused) || tt.refused == "" {
					t.Errorf("%s: %v, want %q", name, response.Result, tt.refused)
				}
				continue
			}
			req.Object.Raw = apply(t, req.Object.Raw, response)
			got := &corev1.Pod{}
			must.Do(t, json.Unmarshal(req.Object.Raw, got))
			if want := `{"version":"v1alpha1","containers":{"train":` + tt.shares + `}}`; got.Annotations[api.AnnotationShares] != want {
				t.Errorf("%s: %s, want %s", name, got.Annotations[api.AnnotationShares], want)
			}
			for _, list := range []corev1.ResourceList{got.Spec.Containers[0].Resources.Limits, got.Spec.Containers[0].Resources.Requests} {
				for resource, want := range tt.written {
					if q := list[resource]; q.Value() != want && (requests || len(list) > 0) {
						t.Errorf("%s: %s is %v, want %d", name, resource, q.Value(), want)
					}
				}
				if units := list[corev1.ResourceName(tt.limits[0])]; len(list) > 0 && units.String() != tt.limits[1] {
					t.Errorf("%s: %v units are left", name, units.String())
				}
			}
			topology := tt.annotations[api.AnnotationTopology]
			if topology == "" && strings.Contains(tt.limits[0], "near") {
				topology = "pcie"
			}
			if got.Annotations[api.AnnotationTopology] != topology {
				t.Errorf("%s: topology %q, want %q", name, got.Annotations[api.AnnotationTopology], topology)
			}
			if again := hook.Handle(context.Background(), req); !again.Allowed || len(again.Patch) > 0 {
				t.Errorf("%s: a second round says %v and patches %s", name, again.Result, again.Patch)
			}
			// What was written is no request of its own: another amount is refused, gate or not.
			forged := got.DeepCopy()
			forged.Spec.Containers[0].Resources.Limits[api.ResourceGPUs] = resource.MustParse("3")
			forged.Spec.Containers[0].Resources.Requests = nil
			if answer := hook.Handle(context.Background(), request(marshal(t, forged))); answer.Allowed || !strings.Contains(answer.Result.Message, "keep one of the two") {
				t.Errorf("%s: another amount beside the class: %v", name, answer.Result)
			}
		}
	}
}

// A pod has one mode: that of its classes, for containers without a class as well.
func TestClasses_WhenContainersDiffer_ModeIsOne(t *testing.T) {
	hook := classed(podtemplate.Rules{}, gpuClass("hard", api.GPUUnit{Core: 10, MemMiB: 1024}, api.ModeMIG, ""))
	for name, tt := range map[string]struct {
		containers []corev1.Container
		refused    string
	}{
		"auto beside mps":       {[]corev1.Container{container("a", "vernier.dev/gpu-gold", "1"), container("b", "vernier.dev/gpu-shared", "1")}, ""},
		"mps beside mig":        {[]corev1.Container{container("a", "vernier.dev/gpu-hard", "1"), container("b", "vernier.dev/gpu-shared", "1")}, "GPUClass shared has mode mps, and vernier.dev/mode or another class of the pod has mig"},
		"no class, beside mps":  {[]corev1.Container{container("a", "vernier.dev/gpu-core", "10"), container("b", "vernier.dev/gpu-shared", "1")}, ""},
		"two GPUs, beside mps":  {[]corev1.Container{container("a", "vernier.dev/gpu-core", "200"), container("b", "vernier.dev/gpu-shared", "1")}, "container a asks for 2 GPUs, and in mode mps a program sees one"},
		"a class of two GPUs":   {[]corev1.Container{container("a", "vernier.dev/gpu-gold", "8"), container("b", "vernier.dev/gpu-shared", "1")}, "container a asks for 2 GPUs"},
		"units beside no share": {[]corev1.Container{container("a", "cpu", "1"), container("b", "vernier.dev/gpu-gold", "1")}, ""},
	} {
		response := hook.Handle(context.Background(), request(marshal(t, podOf(tt.containers...))))
		if response.Allowed != (tt.refused == "") || !response.Allowed && !strings.Contains(response.Result.Message, tt.refused) {
			t.Errorf("%s: %v, want %q", name, response.Result, tt.refused)
		}
	}
}

// A pod has one topology: of its classes the one that implies the other's, in whatever order.
func TestClasses_WhenContainersDiffer_TopologyIsTheNearer(t *testing.T) {
	hook := classed(podtemplate.Rules{}, gpuClass("linked", api.GPUUnit{Core: 100}, api.ModeAuto, "nvlink"), gpuClass("strict", api.GPUUnit{Core: 100}, api.ModeAuto, "numa:required"))
	for _, tt := range []struct {
		classes [2]string
		want    string // refused without
	}{
		{[2]string{"near", "linked"}, "nvlink"},
		{[2]string{"near", "gold"}, "pcie"},
		{[2]string{"near", "strict"}, ""},
	} {
		for range 2 {
			tt.classes[0], tt.classes[1] = tt.classes[1], tt.classes[0]
			pod := podOf(container("a", "vernier.dev/gpu-"+tt.classes[0], "1"), container("b", "vernier.dev/gpu-"+tt.classes[1], "1"))
			req := request(marshal(t, pod))
			response := hook.Handle(context.Background(), req)
			if tt.want == "" {
				if response.Allowed || !strings.Contains(response.Result.Message, "which is not as near") {
					t.Errorf("%v: %v", tt.classes, response.Result)
				}
				continue
			}
			if !response.Allowed {
				t.Errorf("%v: %v", tt.classes, response.Result)
				continue
			}
			got := &corev1.Pod{}
			must.Do(t, json.Unmarshal(apply(t, req.Object.Raw, response), got))
			if got := got.Annotations[api.AnnotationTopology]; got != tt.want {
				t.Errorf("%v: topology %q, want %q", tt.classes, got, tt.want)
			}
		}
	}
}

// BenchmarkClass measures a pod that asks for units of a class beside one that asks for the same
// in amounts. "more-ns" is what the class costs.
func BenchmarkClass(b *testing.B) {
	amounts := realistic(b, true)
	pod := &corev1.Pod{}
	must.Do(b, json.Unmarshal(amounts, pod))
	for _, list := range []corev1.ResourceList{pod.Spec.Containers[0].Resources.Limits, pod.Spec.Containers[0].Resources.Requests} {
		maps.DeleteFunc(list, func(name corev1.ResourceName, _ resource.Quantity) bool {
			return strings.HasPrefix(string(name), api.Prefix)
		})
		list["vernier.dev/gpu-gold"] = resource.MustParse("1")
	}
	var all []api.GPUClass
	for i := range api.MaxGPUClasses - 4 {
		all = append(all, gpuClass(fmt.Sprintf("c%d", i), api.GPUUnit{Core: 10}, api.ModeAuto, ""))
	}
	hook := classed(podtemplate.Rules{}, all...)
	plain, units := request(amounts), request(marshal(b, pod))
	run := func(b *testing.B, req admission.Request) {
		if response := hook.Handle(context.Background(), req); !response.Allowed || len(response.Patch) == 0 {
			b.Fatal(response.Result)
		}
	}
	// Paired: of the same moment, so that what else the machine does is in both.
	var took [2][]float64
	b.ReportAllocs()
	for b.Loop() {
		for i, req := range []admission.Request{plain, units} {
			start := b.Elapsed()
			run(b, req)
			took[i] = append(took[i], float64(b.Elapsed()-start))
		}
	}
	for i := range took {
		slices.Sort(took[i])
	}
	b.ReportMetric(took[0][len(took[0])/2], "amounts-ns")
	b.ReportMetric(took[1][len(took[1])/2]-took[0][len(took[0])/2], "more-ns")
}
